"""Temporary queues: they end with their consumer, or when no consumer has used them for a while."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from queue_over_sql.errors import DatabaseUnavailable, Locked, QueueError, ServiceClosed
from queue_over_sql.observer import ReaperReport
from queue_over_sql.queues.temporary import (
    Ending,
    ending_queues,
    hand_over,
    has_ended,
    note_orphaned,
)
from queue_over_sql.request_reply.reply_queues import is_for_replies
from queue_over_sql.settings import StoredSettings
from queue_over_sql.values.backoff import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.queue import Queue
    from queue_over_sql.settings import QueueSettings


_log = logging.getLogger(__name__)

# A use is noted after this share of the time for which a queue may stay unused.
_SHARE: Final = 10


class TemporaryQueues:
    """Creates the temporary queues of a service, and drops those that have ended."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._said: set[tuple[str, str]] = set()
        self._turns = Turns[str]("The removal of temporary queues")
        self._keeping = Turns[str]("A service that registered anew")

    def create(self, name: str, requested: QueueSettings) -> Queue:
        """Create a queue that ends with this service, or let it end with this one from now on."""
        owner = self._parts.consumer.identity().consumer_id
        # A service without a reaper keeps them by its heartbeats.
        self._parts.consumer.recall_by(self.keep_own)
        return self._parts.catalog.create({name: requested}, owner)[name]

    def drop_own(self, consumer_id: str) -> None:
        """Drop the temporary queues of this consumer, which is stopping.

        If that fails now, the reaper of any service drops them later. Those that a forked child
        knows may belong to its parent, which continues.
        """
        catalog = self._parts.catalog
        for name in sorted(catalog.made_temporary):
            catalog.made_temporary.pop(name, None)
            self._drop(Ending(name, "", consumer_id, None, None, orphaned=True, used=False, now=0))

    def keep_own(self) -> None:
        """Let the queues of this service end with its present registration.

        It registers anew after its consumer was declared dead, although its process lives. Its
        reply queue stays with the former consumer, since each has another one. A claim may wait
        for this, so after the first one that others have locked, the next heartbeat or reaper does
        the rest.
        """
        me = self._parts.consumer.consumer_id
        if me is None:
            return
        former = {name: owner for name, owner in self._own().items() if owner != me}
        for name in self._keeping.of(former):
            try:
                with self._parts.connections.giving_way():
                    self._keep(name, former[name], me)
            except Locked as error:
                self._keeping.blocked(name, error)
                return
            self._keeping.served(name)

    def _keep(self, name: str, former: str, owner: str) -> None:
        parts, made = self._parts, self._parts.catalog.made_temporary
        system, prefix = parts.system(), parts.settings.table_prefix
        if parts.connections.run(hand_over.of(system, prefix, name, former=former, owner=owner)):
            made[name] = owner
        elif made.get(name) == former:
            # It is gone, unless another thread has just done this.
            made.pop(name, None)

    def _own(self) -> dict[str, str]:
        is_own = self._parts.consumer.is_own
        made = sorted(self._parts.catalog.made_temporary.items())
        return dict(each for each in made if is_own(each[1]) and not is_for_replies(*each))

    def reap(self) -> ReaperReport:
        """Drop the temporary queues of all consumers that expired or are gone, and unused ones.

        The process of a consumer that was declared dead may live, and register anew. So its queues
        are dropped after they were seen without it for as long as a heartbeat is valid.
        """
        if self._own():
            # It registers again if it was declared dead.
            self._parts.consumer.identity()
            self.keep_own()
        parts, dialect = self._parts, self._parts.connections.dialect
        system, prefix = parts.system(), parts.settings.table_prefix
        found = parts.connections.run(lambda c: ending_queues(c, system, dialect, prefix))
        ended = {each.name: each for each in found if self._is_over(each)}
        return ReaperReport(dropped=sum(self._drop(ended[name]) for name in self._turns.of(ended)))

    def _is_over(self, seen: Ending) -> bool:
        if not seen.orphaned:
            if seen.orphaned_at is not None:
                self._note(seen.name, partial(self._note_orphaned, seen))
            return self._is_unused(seen)
        if is_for_replies(seen.name, seen.owner):
            return True
        if seen.orphaned_at is None:
            self._note(seen.name, partial(self._note_orphaned, seen))
            return False
        return seen.now - seen.orphaned_at >= self._parts.settings.consumer_timeout_us

    def _is_unused(self, seen: Ending) -> bool:
        """Whether a queue has been unused for too long; notes it if it is in use."""
        parts = self._parts
        try:
            stored = StoredSettings.read(seen.name, seen.settings)
            limit = stored.effective(parts.settings.retry_policies).unused_us
        except QueueError as error:
            self._note_stuck(seen.name, error)
            return False
        if limit is None or seen.used_at is None:
            return False
        passed = seen.now - seen.used_at
        if not seen.used:
            # It was in use for a while after that was noted.
            return passed >= limit + limit // _SHARE
        if passed >= limit // _SHARE:
            self._note(seen.name, partial(parts.catalog.note_use, seen.name))
        return False

    def _note_orphaned(self, seen: Ending) -> None:
        parts = self._parts
        of_queue = (parts.system(), parts.connections.dialect, parts.settings.table_prefix)
        parts.connections.run(note_orphaned.of(*of_queue, seen=seen))

    def _note(self, name: str, note: Callable[[], object]) -> None:
        try:
            with self._parts.connections.giving_way():
                note()
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except QueueError as error:
            # The next reaper does it; this queue must not keep the others from their turn.
            self._say_once(logging.INFO, "The state of queue %s is noted later: %s", name, error)

    def _drop(self, seen: Ending) -> bool:
        parts, dialect = self._parts, self._parts.connections.dialect
        system, prefix = parts.system(), parts.settings.table_prefix
        try:
            dropped = parts.catalog.drop(
                seen.name,
                only_if=partial(
                    has_ended, system=system, dialect=dialect, prefix=prefix, seen=seen
                ),
            )
        except Locked as error:
            self._turns.blocked(seen.name, error)
            return False
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except QueueError as error:
            self._note_stuck(seen.name, error)
            return False
        self._turns.served(seen.name)
        return dropped

    def _note_stuck(self, name: str, error: QueueError) -> None:
        text = "The temporary queue %s cannot be dropped: %s"
        self._say_once(logging.WARNING, text, name, error)

    def _say_once(self, level: int, text: str, name: str, error: QueueError) -> None:
        if (text, name) not in self._said:
            self._said.add((text, name))
            _log.log(level, text, name, error)
