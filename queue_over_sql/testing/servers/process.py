"""The environment of private servers: ports, accounts, folders and programs."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

# Below the range of ports for outgoing connections. There, a client that retries while its server
# is down could connect to itself, or occupy the server's port.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - no secret
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Account(NamedTuple):
    """The system account of a server; without numbers it is that of this process."""

    uid: int | None = None
    gid: int | None = None


def unprivileged_account(*names: str) -> Account:
    """Return the first existing account of `names` if this process is root, else its own."""
    if os.geteuid() == 0:
        for name in names:
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return Account(entry.pw_uid, entry.pw_gid)
    return Account()


def surroundings(account: Account, folder: Path) -> dict[str, Any]:
    """Return arguments of `subprocess` for a program that runs in `folder` as `account`."""
    return {
        "stdin": subprocess.DEVNULL,
        "cwd": folder,
        # The server's account may have no access to the caller's TMPDIR.
        "env": {**os.environ, "TMPDIR": str(folder)},
        "user": account.uid,
        "group": account.gid,
        "extra_groups": None if account.uid is None else [],
    }


def new_folder(label: str, account: Account) -> Path:
    """Create a private folder that `account` owns and can enter.

    It is in the folder for temporary files; in the system's own one if `account` cannot enter
    TMPDIR.
    """
    parent = Path(tempfile.gettempdir())
    if account.uid is not None and not open_to_all(parent):
        parent = Path("/var/tmp")  # noqa: S108 - mkdtemp makes a private folder in it
    folder = Path(tempfile.mkdtemp(prefix=f"queue-over-sql-{label}-", dir=parent)).resolve()
    if account.uid is not None and account.gid is not None:
        os.chown(folder, account.uid, account.gid)
    return folder


def open_to_all(folder: Path) -> bool:
    """Return whether every account can enter `folder`."""
    resolved = folder.resolve()
    return all(step.stat().st_mode & 0o001 for step in (resolved, *resolved.parents))


def copied_programs(folder: Path, into: Path) -> Path:
    """Copy the programs of `folder`, and their files, to where an account can run them."""
    shutil.copytree(folder.parent, into, symlinks=True)
    return into / folder.name


def folder_variable(engine: str) -> str:
    """Return the name of the environment variable for the folder of an engine's programs."""
    return f"QUEUE_OVER_SQL_TEST_{engine.upper()}_BIN"


def find_binary(engine: str, name: str, *patterns: str) -> Path | None:
    """Return the program `name` of `engine`.

    It looks in the folder of the environment variable (see `folder_variable`), on the PATH, and in
    the folders that match `patterns`, newest first.
    """
    given = os.environ.get(folder_variable(engine))
    if given:
        chosen = Path(given) / name
        return chosen if os.access(chosen, os.X_OK) else None
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    found = [
        candidate
        for pattern in patterns
        for folder in Path("/").glob(pattern.lstrip("/"))
        if os.access(candidate := folder / name, os.X_OK)
    ]
    return max(found, key=lambda path: numbers(path.parent), default=None)


def numbers(path: Path) -> list[int]:
    """Return the numbers in `path`, to sort versions."""
    return [int(number) for number in re.findall(r"\d+", str(path))]
