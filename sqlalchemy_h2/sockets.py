"""The number that the operating system gives to a socket of Java, which Java does not tell."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import Any, Final

_DESCRIPTORS: Final = Path("/proc/self/fd")
_TCP: Final = frozenset({socket.AF_INET, socket.AF_INET6})


def number_of(java_socket: Any) -> int:
    """Find the number by the addresses of both ends; OSError where that is not possible."""
    wanted = (
        _end(java_socket.getLocalAddress().getHostAddress(), java_socket.getLocalPort()),
        _end(java_socket.getInetAddress().getHostAddress(), java_socket.getPort()),
    )
    for path in _DESCRIPTORS.iterdir():
        # One that is closed meanwhile, or is no socket, or has no peer.
        with contextlib.suppress(OSError):
            if _ends(int(path.name)) == wanted:
                return int(path.name)
    raise OSError(errno.ENOTSOCK, "the socket to H2's server is not among those of this process")


def _ends(number: int) -> object:
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        return None
    # A copy, because the number is not ours to close.
    with socket.socket(fileno=os.dup(number)) as found:
        if found.family not in _TCP:
            return None
        return _end(*found.getsockname()[:2]), _end(*found.getpeername()[:2])


def _end(host: Any, port: Any) -> tuple[object, int]:
    # Java's sockets are of IPv6, also those to an address of IPv4.
    address = ipaddress.ip_address(str(host).partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address, int(port)
