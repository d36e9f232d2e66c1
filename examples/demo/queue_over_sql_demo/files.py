"""The demo's input: the files below a folder, and their checksums."""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

# Folders below the standard library's that are not part of it.
NOT_STANDARD = frozenset({"site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True)
class InputFile:
    """One file: its number in the scan, and its path below the folder."""

    number: int
    path: str

    def payload(self) -> dict[str, object]:
        """The message for this file."""
        return {"number": self.number, "path": self.path}


@dataclass(frozen=True)
class Scan:
    """The result of a scan: the files, and how many others were skipped."""

    files: tuple[InputFile, ...]
    skipped: int


def standard_library() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def scan(folder: Path, limit: int | None = None, without: Collection[str] = ()) -> Scan:
    """Find the regular, readable files below `folder`, sorted by path.

    It does not follow links. Files that cannot be read, or whose name is not Unicode, are counted
    as skipped. `limit` is the largest number of files; `without` names folders to leave out.
    """
    paths: list[str] = []
    skipped = 0
    for path in _regular_files(folder, without):
        if os.access(path, os.R_OK) and _is_unicode(path):
            paths.append(str(Path(path).relative_to(folder)))
        else:
            skipped += 1
    paths.sort()
    return Scan(
        tuple(InputFile(number, path) for number, path in enumerate(paths[:limit])), skipped
    )


def _regular_files(folder: Path, without: Collection[str]) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        # os.walk does not enter folders that are removed here.
        folders[:] = [name for name in folders if name not in without]
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118 - thousands of them
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path


def _is_unicode(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest(path: Path) -> tuple[str, int]:
    """The SHA-256 of the file at `path` in hexadecimal, and the number of its bytes."""
    with path.open("rb") as stream:
        checksum = hashlib.file_digest(stream, "sha256").hexdigest()
        return checksum, stream.tell()
