"""Offsets of a stream: the last round of each database, as in Spark's checkpoint.

One database: ``{"round": 7, "after": 5, "registered": 17…}``: a batch of the rounds 6 and 7 of the
durable consumer that was registered at that microsecond. Several databases: ``{"rounds":
{"<label>": 7, …}, "after": {"<label>": 5, …}, "registered": {"<label>": 17…, …}}``, so that a query
can begin with one entry in ``urls`` and get more later. The end of a batch includes its start: for
the first batch of a checkpoint Spark stores no start, and asks the source again where the stream
begins. After a drop or expiry a consumer counts its rounds from 1 again, so ``registered`` says
which ones are meant; offsets of the first versions do not have it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from queue_over_sql.errors import UNREADABLE

_log = logging.getLogger(__name__)

ONLY: Final = ""
"""The label of the only database."""


@dataclasses.dataclass(frozen=True)
class Offset:
    """The last round that was read from each database, by label; see the module.

    A later database is in none of the parts. ``after`` is empty at the start of a stream;
    ``registered`` is empty if it was not stored.
    """

    rounds: Mapping[str, int]
    after: Mapping[str, int] = dataclasses.field(default_factory=dict)
    registered: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def written(self) -> dict[str, Any]:
        """The text in Spark's checkpoint."""
        alone = set(self.rounds) == {ONLY}
        last = "round" if alone else "rounds"
        parts = {last: self.rounds, "after": self.after, "registered": self.registered}
        return {
            name: part[ONLY] if alone else dict(sorted(part.items()))
            for name, part in parts.items()
            if part
        }

    def stands_at(self, other: Offset) -> bool:
        """Whether it is the same position as another one, which may know less."""
        known = {**self.registered, **other.registered}
        return self.rounds == other.rounds and self.registered == known


def read_offset(
    written: Mapping[str, Any], labels: Collection[str], *, strict: bool = True
) -> Offset:
    """Read the text of ``Offset.written``, perhaps from long ago and for other databases.

    ``labels`` are those of this query. Raises ValueError for an offset of other databases; with
    ``strict`` also if it has a database that this query leaves out.
    """
    alone = set(labels) == {ONLY}
    names = ("round" if alone else "rounds", "after", "registered")
    rounds, after, registered = (_by_label(written.get(name), alone) for name in names)
    if not isinstance(rounds, Mapping):
        raise ValueError(_other_databases(written, labels))  # noqa: TRY004 - of a file
    if missing := sorted(set(rounds) - set(labels)):
        if strict:
            raise ValueError(_other_databases(written, labels))
        _log.warning(
            "The stream continues without the databases %s: its checkpoint has them, but its "
            "options do not name them.",
            ", ".join(missing),
        )
    return Offset(*(_of(labels, part or {}) for part in (rounds, after, registered)))


def _by_label(part: Any, alone: bool) -> Any:
    return {ONLY: part} if alone and part is not None else part


def _of(labels: Collection[str], rounds: Any) -> dict[str, int]:
    try:
        return {label: int(last) for label, last in rounds.items() if label in labels}
    except UNREADABLE as error:
        msg = (
            f"The checkpoint contains {rounds!r:.50} instead of the rounds of a stream. Restore "
            "it, or give the query its own checkpoint."
        )
        raise ValueError(msg) from error


def _other_databases(written: Mapping[str, Any], labels: Collection[str]) -> str:
    theirs = written.get("rounds")
    then = ", ".join(sorted(theirs)) if isinstance(theirs, Mapping) else "a single one, by url"
    now = "a single one, by url" if set(labels) == {ONLY} else ", ".join(sorted(labels))
    return (
        f"The checkpoint belongs to a query of other databases: {then}; this query reads {now}. "
        "Use the same databases (urls may add more), or give the query its own checkpoint: its "
        "claimed messages are then delivered again."
    )
