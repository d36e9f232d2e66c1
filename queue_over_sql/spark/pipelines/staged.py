"""StagedFolder: a dataset to which many files are added at once, all of them or none.

The layout, in which Spark and others that read Parquet pass over names with a leading ``_``::

    queue=orders/date=2030-01-31/part-….parquet   what counts
    _staging/export-000000000007.<random>/…       what is being written
    _commits/export-000000000007.json             what was added then, and what is known of it

A file of ``_commits`` appears at once and never twice; from then on its files count. They are
moved to their places afterwards, and whoever comes next does what is left of that.
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
    """What was added at once: files below the dataset's folder, and their size in bytes.

    The name is the series and its number, as in ``export-000000000007``; ``staged`` is the folder
    in which they were written.
    """

    name: str
    staged: str
    files: tuple[str, ...]
    size: int
    facts: Mapping[str, Any]

    @property
    def series(self) -> str:
        """What it belongs to."""
        return self.name.rpartition("-")[0]

    @property
    def number(self) -> int:
        """Its place in its series."""
        return int(self.name.rpartition("-")[2])

    def to_json(self) -> str:
        """Its text in the file."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Commit:
        """Read its text."""
        fields = json.loads(text)
        return cls(**{**fields, "files": tuple(fields["files"])})


def commit_name(series: str, number: int) -> str:
    """The name of the commit of a series; names sort as their numbers do."""
    return f"{series}-{number:012d}"


class StagedFolder:
    """The dataset of one folder, added to by commits."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def begin(self, name: str) -> str:
        """Choose the folder that a commit is written to first; returns its name."""
        return f"{_STAGING}/{name}.{uuid.uuid4().hex[:12]}"

    def place_of(self, folder: str) -> str:
        """A folder as Spark is told of it."""
        return f"{self.files.root}/{folder}"

    def commit(
        self, name: str, staged: str, facts: Mapping[str, Any], *, remembered: int | None = None
    ) -> Commit:
        """Let what was written to a folder of ``begin`` count, and move it to its place.

        ``facts`` is what is to be known of it later. The commit that came so many before this one
        in the series as ``remembered`` says is forgotten. Where another has made this commit, what
        was written does not count, and ``FileExistsError`` says so.
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
                "added. Run only one process per folder, and run this again."
            ) from error
        self._put_in_place(commit)
        self._tidy(name)
        if remembered is not None and commit.number >= remembered:
            old = commit_name(commit.series, commit.number - remembered)
            self.files.remove(f"{_COMMITS}/{old}.json")
        return commit

    def find(self, name: str) -> Commit | None:
        """A commit; None where it was not made."""
        there = self.files.exists(f"{_COMMITS}/{name}.json")
        return self._read(f"{name}.json") if there else None

    def last(self, series: str) -> Commit | None:
        """The newest commit of a series."""
        names = [n for n in self.files.names(_COMMITS) if n.startswith(f"{series}-")]
        return self._read(names[-1]) if names else None

    def recover(self) -> None:
        """Do what is left of commits that were made, and forget what can never be one."""
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
