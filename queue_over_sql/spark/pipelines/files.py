"""Files of a dataset for the driver: list and move them, and write them completely or not at all.

Spark writes the data itself. One small file decides whether the data count. It must appear
atomically and never replace another, which Spark cannot do.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession


Files = Union["LocalFiles", "HadoopFiles"]
"""The files below one folder; names are relative to it, with ``/`` as the separator."""


def files_at(spark: SparkSession, path: str | os.PathLike[str]) -> Files:
    """The files of a dataset in a local folder, or at a URI such as ``hdfs://…``.

    The session has the credentials of other file systems. A Spark Connect session cannot provide
    them, which raises ValueError.
    """
    text = os.fspath(path)
    scheme = urlsplit(text).scheme
    if scheme == "file":
        return LocalFiles(Path(urlsplit(text).path), "file://")
    configured = _hadoop_configuration(spark)
    default = "file:" if configured is None else str(configured.get("fs.defaultFS", "file:"))
    if not scheme and default.startswith("file:"):
        return LocalFiles(Path(text).expanduser().absolute())
    if configured is None:
        msg = (
            f"{text} is in a file system that a Spark Connect session cannot access from this "
            "host: use a folder of this host, or a session without Spark Connect"
        )
        raise ValueError(msg)
    return HadoopFiles(spark, text)


def _hadoop_configuration(spark: SparkSession) -> Any:
    context = getattr(spark, "_jsc", None)
    return None if context is None else context.hadoopConfiguration()


def _hidden(name: str) -> bool:
    return name.startswith((".", "_"))


class LocalFiles:
    """Files of this host, or of a file system that is mounted on every host."""

    def __init__(self, root: Path, scheme: str = "") -> None:
        self._root = root
        # Not as a URI, because Spark does not decode percent signs.
        self.root = f"{scheme}{root}"

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty if there is no such folder."""
        place = self._root / folder
        return sorted(each.name for each in place.iterdir()) if place.is_dir() else []

    def exists(self, name: str) -> bool:
        """Whether the file or folder exists."""
        return (self._root / name).exists()

    def data_files(self, folder: str) -> list[tuple[str, int]]:
        """The files in a folder and below it with their sizes, without hidden ones."""
        place = self._root / folder
        found = [
            (file.relative_to(self._root).as_posix(), file.stat().st_size)
            for file in place.rglob("*")
            if file.is_file() and not any(map(_hidden, file.relative_to(place).parts))
        ]
        return sorted(found)

    def read(self, name: str) -> str:
        """The text of a file."""
        return (self._root / name).read_text(encoding="utf-8")

    def create(self, name: str, text: str) -> None:
        """Write a file atomically; ``FileExistsError`` if it exists."""
        place = self._root / name
        fresh = self._written(name, text.encode())
        try:
            # Atomic, and never replaces a file.
            place.hardlink_to(fresh)
        finally:
            fresh.unlink()
        _sync(place.parent)

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically; it replaces an existing one."""
        self._written(name, content).replace(self._root / name)

    def _written(self, name: str, content: bytes) -> Path:
        place = self._root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f".{uuid.uuid4().hex}")
        fresh.write_bytes(content)
        _sync(fresh)
        return fresh

    def move(self, source: str, target: str) -> None:
        """Move a file; do nothing if that is already done."""
        place = self._root / target
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            (self._root / source).replace(place)
        except FileNotFoundError:
            if not place.exists():
                raise

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""
        place = self._root / name
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)

    def keep(self, names: Iterable[str]) -> None:
        """Make files survive a power failure, as far as the file system can."""
        places = [self._root / name for name in names]
        for place in [*places, *sorted({place.parent for place in places})]:
            _sync(place)


def _sync(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        # Some file systems cannot do it for folders.
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


class HadoopFiles:
    """Files of any file system that Spark supports, with the session's credentials."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to a file system
        self._fs: Any = self._path_of(root).getFileSystem(_hadoop_configuration(spark))
        self.root = self._fs.makeQualified(self._path_of(root)).toString()

    def names(self, folder: str) -> list[str]:
        """As in ``LocalFiles``."""
        place = self._at(folder)
        if not self._fs.exists(place):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(place))

    def exists(self, name: str) -> bool:
        """As in ``LocalFiles``."""
        return bool(self._fs.exists(self._at(name)))

    def data_files(self, folder: str) -> list[tuple[str, int]]:
        """As in ``LocalFiles``."""
        found: list[tuple[str, int]] = []
        if not self._fs.exists(self._at(folder)):
            return found
        for status in self._fs.listStatus(self._at(folder)):
            name = status.getPath().getName()
            if _hidden(name):
                continue
            if status.isDirectory():
                found += self.data_files(f"{folder}/{name}")
            else:
                found.append((f"{folder}/{name}", int(status.getLen())))
        return sorted(found)

    def read(self, name: str) -> str:
        """As in ``LocalFiles``."""
        stream = self._fs.open(self._at(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def create(self, name: str, text: str) -> None:
        """As in ``LocalFiles``: it writes another name and renames it."""
        folder, _, last = name.rpartition("/")
        fresh = f"{folder}/.{last}.{uuid.uuid4().hex}".lstrip("/")
        self.write(fresh, text.encode())
        place = self._at(name)
        if self._fs.exists(place) or not self._fs.rename(self._at(fresh), place):
            self.remove(fresh)
            raise FileExistsError(f"{self.root}/{name} already exists")

    def write(self, name: str, content: bytes) -> None:
        """As in ``LocalFiles``; these file systems show a file only when it is closed."""
        stream = self._fs.create(self._at(name), True)  # noqa: FBT003 - Java has no names here
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def move(self, source: str, target: str) -> None:
        """As in ``LocalFiles``."""
        if self._fs.exists(self._at(target)):
            return
        self._fs.mkdirs(self._at(target).getParent())
        if not self._fs.rename(self._at(source), self._at(target)):
            raise OSError(f"{self.root}/{source} cannot be moved to {target}")

    def remove(self, name: str) -> None:
        """As in ``LocalFiles``."""
        self._fs.delete(self._at(name), True)  # noqa: FBT003

    def keep(self, names: Iterable[str]) -> None:
        """Do nothing, because these file systems guarantee it when a file is closed."""

    def _at(self, name: str) -> Any:
        return self._path_of(f"{self.root}/{name}" if name else self.root)

    def _path_of(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)
