"""Attempts to sign in: how many may fail, and how long one waits then."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict


class Attempts:
    """Counts wrong tokens by address, for a limited number of addresses.

    Args:
        most: how many are allowed in a window.
        seconds: length of a window, which begins with the first.
        addresses: how many addresses are remembered, the latest ones.
    """

    def __init__(self, most: int = 10, seconds: float = 60.0, addresses: int = 10_000) -> None:
        self._most = most
        self._seconds = seconds
        self._addresses = addresses
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, address: str | None) -> None:
        """Count one wrong token."""
        key, now = _neighbourhood(address), time.monotonic()
        with self._lock:
            began, count = self._counts.pop(key, (now, 0))
            if now - began >= self._seconds:
                began, count = now, 0
            self._counts[key] = began, count + 1
            while len(self._counts) > self._addresses:
                self._counts.popitem(last=False)

    def blocked_for(self, address: str | None) -> int | None:
        """For how many seconds tokens are refused; None if they are not."""
        with self._lock:
            began, count = self._counts.get(_neighbourhood(address), (0.0, 0))
        left = began + self._seconds - time.monotonic()
        return None if count < self._most or left <= 0 else int(left) + 1


def _neighbourhood(address: str | None) -> str:
    # An owner of an IPv6 address has a whole network of them.
    found = None if address is None else parsed_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found or address)


def parsed_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address as an object, of IPv4 where it is mapped to IPv6; None if it is none."""
    try:
        found = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
