"""StagedFolder: a dataset to which many files are added at once, all or none.

The layout; Spark and other readers of Parquet ignore names with a leading ``_``::

    queue=orders/date=2030-01-31/part-….parquet   data that count
    _staging/export-000000000007.<random>/…       files that are being written
    _commits/export-000000000007.json             the files of a commit, and its facts

A file in ``_commits`` appears atomically and never twice; from then on its files count. They are
moved to their places afterwards, and the next process completes unfinished moves.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from queue_over_sql.spark.pipelines.files import Files

_COMMITS: Final = "_commits"
_STAGING: Final = "_staging"


@dataclasses.dataclass(frozen=True)
class Commit:
    """The files that one commit adds, below the dataset's folder, and their size in bytes.

    The name is the series and its number, as in ``export-000000000007``; ``staged`` is the folder
    in which the files were written.
    """

    name: str
    staged: str
    files: tuple[str, ...]
    size: int
    facts: Mapping[str, Any]

    @property
    def series(self) -> str:
        """Its series."""
        return self.name.rpartition("-")[0]

    @property
    def number(self) -> int:
        """Its number in its series."""
        return int(self.name.rpartition("-")[2])

    def to_json(self) -> str:
        """Encode it for the file."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Commit:
        """Decode the text of the file."""
        fields = json.loads(text)
        return cls(**{**fields, "files": tuple(fields["files"])})


def commit_name(series: str, number: int) -> str:
    """The name of a commit of a series; names sort as their numbers do."""
    return f"{series}-{number:012d}"


class StagedFolder:
    """The dataset of one folder, to which commits add files."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def begin(self, name: str) -> str:
        """Choose the folder for the files of a commit; returns its name."""
        return f"{_STAGING}/{name}.{uuid.uuid4().hex[:12]}"

    def place_of(self, folder: str) -> str:
        """A folder as a path for Spark."""
        return f"{self.files.root}/{folder}"

    def commit(
        self, name: str, staged: str, facts: Mapping[str, Any], *, remembered: int | None = None
    ) -> Commit:
        """Make the files in a folder of ``begin`` count, and move them to their places.

        ``facts`` are stored with it. ``remembered`` is how many commits of the series are kept. If
        another process made this commit, the files do not count, and it raises ``FileExistsError``.
        """
        found = self.files.data_files(staged)
        names = tuple(name.removeprefix(f"{staged}/") for name, _ in found)
        commit = Commit(name, staged, names, sum(size for _, size in found), dict(facts))
        self.files.keep(file for file, _ in found)
        try:
            self.files.create(f"{_COMMITS}/{name}.json", commit.to_json())
        except FileExistsError as error:
            raise FileExistsError(
                f"Another process added {name} to {self.files.root}, so nothing of this run was "
                "added. Run only one process per folder, and start this process again."
            ) from error
        self._put_in_place(commit)
        self._tidy(name)
        if remembered is not None and commit.number >= remembered:
            old = commit_name(commit.series, commit.number - remembered)
            self.files.remove(f"{_COMMITS}/{old}.json")
        return commit

    def find(self, name: str) -> Commit | None:
        """A commit; None if it does not exist."""
        there = self.files.exists(f"{_COMMITS}/{name}.json")
        return self._read(f"{name}.json") if there else None

    def last(self, series: str) -> Commit | None:
        """The newest commit of a series."""
        names = [n for n in self.files.names(_COMMITS) if n.startswith(f"{series}-")]
        return self._read(names[-1]) if names else None

    def recover(self) -> None:
        """Complete the moves of existing commits, and delete files of abandoned ones."""
        for folder in self.files.names(_STAGING):
            commit = self.find(folder.rpartition(".")[0])
            if commit is None:
                continue
            if commit.staged == f"{_STAGING}/{folder}":
                self._put_in_place(commit)
            else:
                self.files.remove(f"{_STAGING}/{folder}")

    def _put_in_place(self, commit: Commit) -> None:
        for file in commit.files:
            self.files.move(f"{commit.staged}/{file}", file)
        self.files.keep(commit.files)
        self.files.remove(commit.staged)

    def _tidy(self, name: str) -> None:
        series = name.rpartition("-")[0]
        for folder in self.files.names(_STAGING):
            begun = folder.rpartition(".")[0]
            if begun.rpartition("-")[0] == series and begun <= name:
                self.files.remove(f"{_STAGING}/{folder}")

    def _read(self, name: str) -> Commit:
        return Commit.from_json(self.files.read(f"{_COMMITS}/{name}"))
