"""The recorder: an observer that notes what a service does in the journal of its process."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
from typing import TYPE_CHECKING, Final

from queue_over_sql import Observer
from queue_over_sql.testing.history.journal import Event, Journal

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from queue_over_sql import MessageFacts

_MOST_CLAIMS: Final = 100_000


class Recorder(Observer):
    """Notes each publish, claim, handler call and settle of a service, with its time.

    Pass it as ``QueueService(url, observer=Recorder(folder))`` in each process; several services of
    a process may share one. Then ``check(folder)`` decides whether the queues kept their promises.

    It costs a write to a file for each call, so it is for tests. It does not note payloads.

    A verb with ``connection=`` commits with your transaction: put that into ``transaction()``, or
    what you roll back will look lost.

    Args:
        folder: where all processes of one history write; it must exist.
        writer: name of the file; default: one that no other process has. A process that is started
            again may have its former name; two at once must not share it.
    """

    def __init__(self, folder: str | Path, writer: str = "") -> None:
        self.journal = Journal(folder, writer)
        """For what only your code knows, such as ``journal.settling("ack", [message])``."""
        self._lock = threading.Lock()
        # The claims of each message that this process has made and not settled.
        self._claims: dict[tuple[str, int], list[MessageFacts]] = {}
        self._pending: contextvars.ContextVar[list[Event] | None] = contextvars.ContextVar(
            "pending", default=None
        )

    @contextlib.contextmanager
    def transaction(self) -> Generator[None]:
        """Wrap a transaction of yours in which verbs have ``connection=``; it ends inside.

        What they did is noted when the block ends. If it raises, it is left out. Verbs without
        ``connection=`` commit by themselves, so only ``consume`` may also stand inside.
        """
        began, pending = self.journal.event("began").at, list[Event]()
        token = self._pending.set(pending)
        try:
            yield
        finally:
            self._pending.reset(token)
        for event in pending:
            at = self.journal.event("ended").at
            self.journal.write([dataclasses.replace(event, began=began, at=at)])

    def closing(self) -> None:
        """Note that a service gives back what it holds."""
        self.journal.write([self.journal.event("closing")])

    def published(self, queue: str, count: int, seconds: float, ids: Sequence[int]) -> None:
        """Note the messages whose ids are known."""
        del count
        events = [self.journal.event("published", queue=queue, id=id_) for id_ in ids]
        self._write([_since(event, seconds) for event in events])

    def claimed(self, queue: str, messages: Sequence[MessageFacts], seconds: float) -> None:
        """Note the claims, or what was taken."""
        batch = self.journal.new_batch()
        with self._lock:
            for facts in messages:
                if facts.consumer_id is not None:
                    self._claims.setdefault((queue, facts.id), []).append(facts)
            while len(self._claims) > _MOST_CLAIMS:
                del self._claims[next(iter(self._claims))]
        events = [
            _since(self._about("delivered", queue, facts, batch), seconds) for facts in messages
        ]
        # A claim commits by itself; only a take belongs to the caller's transaction.
        self.journal.write([event for event in events if event.consumer])
        self._write([event for event in events if not event.consumer])

    @contextlib.contextmanager
    def handling(self, queue: str, messages: Sequence[MessageFacts]) -> Generator[None]:
        """Note when a handler starts and ends."""
        batch = self.journal.new_batch()
        self.journal.write([self._about("started", queue, facts, batch) for facts in messages])
        ended = "failed"
        try:
            yield
            ended = "finished"
        finally:
            self.journal.write([self._about(ended, queue, facts, batch) for facts in messages])

    def settled(self, queue: str, outcome: str, ids: Sequence[int]) -> None:
        """Note what was settled."""
        self._write([self._end("settled", queue, id_, outcome) for id_ in ids])

    def claim_lost(self, queue: str, ids: Sequence[int]) -> None:
        """Note what could not be settled."""
        self._write([self._end("lost", queue, id_) for id_ in ids])

    def dead_lettered(self, queue: str, ids: Sequence[int], reason: str | None) -> None:
        """Note what became a dead letter, also through the reaper."""
        del reason
        self._write([self.journal.event("dead", queue=queue, id=id_) for id_ in ids])

    def _end(self, act: str, queue: str, id_: int, verb: str = "") -> Event:
        """The end of a claim; without its stamp if this process has claimed the message again."""
        with self._lock:
            claims = self._claims.pop((queue, id_), [])
            facts = claims[0] if len(claims) == 1 else None
            if len(claims) > 1:
                self._claims[queue, id_] = claims[1:]
        if facts is None:
            return self.journal.event(act, queue=queue, id=id_, verb=verb)
        return self._about(act, queue, facts, 0, verb)

    def _about(
        self, act: str, queue: str, facts: MessageFacts, batch: int, verb: str = ""
    ) -> Event:
        return self.journal.event(
            act,
            queue=queue,
            id=facts.id,
            consumer=facts.consumer_id or "",
            round=facts.round or 0,
            attempt=facts.attempt,
            group=facts.group,
            priority=facts.priority,
            due=facts.due,
            verb=verb,
            batch=batch,
        )

    def _write(self, events: list[Event]) -> None:
        pending = self._pending.get()
        if pending is None:
            self.journal.write(events)
        else:
            pending += events


def _since(event: Event, seconds: float) -> Event:
    return dataclasses.replace(event, began=event.at - seconds)
