"""What a consumer handles: it says so with its heartbeats, so that others need not guess."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from queue_over_sql.database.forks import note_heir, shared_lock
from queue_over_sql.errors import UNREADABLE
from queue_over_sql.schema import RELEASE
from queue_over_sql.values.limits import HANDLES_LENGTH

# A program with its own loop handles a queue for this long after it last asked for messages of it,
# since it may work on what it got for a while.
_LATELY_SECONDS: Final = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class HandledQueue:
    """A queue that a consumer handles.

    Attributes:
        queue: its name.
        concurrency: how many calls of handlers its workers run at once, in all of their queues;
            None: it has no worker for this queue, but consumed or took messages lately.
        kinds: the kinds of messages that it knows; None: all.
    """

    queue: str
    concurrency: int | None = None
    kinds: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What a consumer said.

    Attributes:
        version: of its library.
        table_prefix: of the tables of its queues.
        handles: the queues, by name.
        whole: whether those are all of them, with their kinds.
    """

    version: str
    table_prefix: str
    handles: tuple[HandledQueue, ...]
    whole: bool


class Handling:
    """What one service handles at present; any thread may use it."""

    def __init__(self, table_prefix: str) -> None:
        self._prefix = table_prefix
        self._lock = shared_lock()
        self._workers: dict[object, tuple[int, Mapping[str, Collection[str]]]] = {}
        # When somebody last asked for messages of a queue, and the kinds that are known.
        self._asked: dict[str, tuple[float, Collection[str]]] = {}
        note_heir(self)

    def forked(self) -> None:
        """Forget what the parent of a forked child handles."""
        self._workers, self._asked = {}, {}

    def asked(self, queue: str, kinds: Collection[str]) -> None:
        """Somebody asks for messages of a queue; no kinds stand for all."""
        self._asked[queue] = time.monotonic(), kinds

    def forget(self, queue: str) -> None:
        """Nobody asks for messages of a queue any more."""
        self._asked.pop(queue, None)

    def begin(self, worker: object, calls: int, queues: Mapping[str, Collection[str]]) -> None:
        """A worker handles these queues from now on; ``calls`` at once, and the known kinds."""
        with self._lock:
            self._workers[worker] = calls, queues

    def end(self, worker: object) -> None:
        """A worker has ended."""
        with self._lock:
            _, queues = self._workers.pop(worker, (0, {}))
            for queue in queues:
                # The worker asked.
                self._asked.pop(queue, None)

    def text(self) -> str:
        """All of it as JSON, as the registration stores it."""
        since = time.monotonic() - _LATELY_SECONDS
        found: dict[str, dict[str, Any]] = {}
        with self._lock:
            for queue, (at, kinds) in list(self._asked.items()):
                if at >= since:
                    found[queue] = {"kinds": sorted(kinds)} if kinds else {}
            for concurrency, queues in self._workers.values():
                for queue, kinds in queues.items():
                    one = found.setdefault(queue, {"kinds": sorted(kinds)} if kinds else {})
                    one["concurrency"] = one.get("concurrency", 0) + concurrency
        return _shortened(dict(sorted(found.items())), self._prefix)


def _shortened(queues: dict[str, dict[str, Any]], prefix: str) -> str:
    said: dict[str, Any] = {"version": RELEASE, "prefix": prefix, "queues": queues}
    text = _json(said)
    if len(text) <= HANDLES_LENGTH:
        return text
    # The table of kinds knows what is left out here.
    said["more"] = True
    kept: dict[str, dict[str, Any]] = {}
    said["queues"] = kept
    for queue, one in queues.items():
        kept[queue] = {name: value for name, value in one.items() if name != "kinds"}
        if len(_json(said)) > HANDLES_LENGTH:
            del kept[queue]
            break
    return _json(said)


def _json(said: Mapping[str, Any]) -> str:
    return json.dumps(said, separators=(",", ":"))


def read(text: str | None) -> Said | None:
    """What a consumer said; None if it has not said anything, or nothing that can be read."""
    try:
        said = json.loads(text or "null")
        handles = tuple(
            HandledQueue(
                str(queue),
                int(one["concurrency"]) if "concurrency" in one else None,
                tuple(map(str, one["kinds"])) if "kinds" in one else None,
            )
            for queue, one in said["queues"].items()
        )
        return Said(str(said["version"]), str(said["prefix"]), handles, not said.get("more"))
    except UNREADABLE:
        return None


def claimed_from(known: Sequence[tuple[str, str]]) -> tuple[HandledQueue, ...]:
    """What a consumer handles that has not said so: the queues and kinds that it has declared."""
    kinds: dict[str, list[str]] = {}
    for queue, kind in known:
        kinds.setdefault(queue, []).append(kind)
    return tuple(
        HandledQueue(queue, kinds=None if "" in names else tuple(sorted(names)))
        for queue, names in sorted(kinds.items())
    )
