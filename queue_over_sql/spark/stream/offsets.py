"""Offsets of a stream: the last round of each database, as Spark keeps them in its checkpoint.

One database: ``{"round": 7, "after": 5, "registered": 17…}``: a batch of the rounds 6 and 7 of the
durable consumer that was registered at that microsecond. Several databases: ``{"rounds":
{"<label>": 7, …}, "after": {"<label>": 5, …}, "registered": {"<label>": 17…, …}}``, so that a query
may begin with one entry in ``urls`` and get more later. A batch's own start is kept in its end,
because of the first batch of a checkpoint Spark keeps no other, and asks the source anew where the
stream begins. A consumer that was dropped or expired counts its rounds anew, so that their numbers
alone do not say which ones are meant; offsets of the first versions carry no ``registered``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from queue_over_sql.errors import UNREADABLE

_log = logging.getLogger(__name__)

ONLY: Final = ""
"""The label of a database that needs none, because it is the only one."""


@dataclasses.dataclass(frozen=True)
class Offset:
    """Up to which round each database was read, by the databases' labels; see the module.

    A database that came in later is in no part. ``after`` is empty where a stream begins,
    ``registered`` where nobody noted it.
    """

    rounds: Mapping[str, int]
    after: Mapping[str, int] = dataclasses.field(default_factory=dict)
    registered: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def written(self) -> dict[str, Any]:
        """As Spark keeps it."""
        alone = set(self.rounds) == {ONLY}
        last = "round" if alone else "rounds"
        parts = {last: self.rounds, "after": self.after, "registered": self.registered}
        return {
            name: part[ONLY] if alone else dict(sorted(part.items()))
            for name, part in parts.items()
            if part
        }

    def stands_at(self, other: Offset) -> bool:
        """Whether it is the same place as another, which may not know all that this one knows."""
        known = {**self.registered, **other.registered}
        return self.rounds == other.rounds and self.registered == known


def read_offset(
    written: Mapping[str, Any], labels: Collection[str], *, strict: bool = True
) -> Offset:
    """Read what ``Offset.written`` made, perhaps long ago and for other databases.

    ``labels`` are those of this query. An offset of other databases is a ValueError; one that knows
    a database which this query leaves out only if ``strict``.
    """
    alone = set(labels) == {ONLY}
    names = ("round" if alone else "rounds", "after", "registered")
    rounds, after, registered = (_by_label(written.get(name), alone) for name in names)
    if not isinstance(rounds, Mapping):
        raise ValueError(_other_databases(written, labels))  # noqa: TRY004 - of a file
    if missing := sorted(set(rounds) - set(labels)):
        if strict:
            raise ValueError(_other_databases(written, labels))
        _log.warning("The stream continues without the databases %s.", ", ".join(missing))
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
