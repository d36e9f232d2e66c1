"""Temporary queues: they end with their consumer, or when no consumer has used them for a while."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from queue_over_sql.consumers.consumer import elapsed_clock
from queue_over_sql.errors import DatabaseUnavailable, Locked, QueueError, ServiceClosed
from queue_over_sql.observer import ReaperReport
from queue_over_sql.queues.temporary import Ending, ending_queues, hand_over, has_ended, note_use
from queue_over_sql.request_reply.reply_queues import is_for_replies
from queue_over_sql.settings import StoredSettings
from queue_over_sql.values.backoff import Turns

if TYPE_CHECKING:
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
        self._stuck: set[str] = set()
        # Since when this reaper has known queues whose consumers are dead, by name and consumer.
        self._orphans: dict[tuple[str, str | None], float] = {}
        self._turns = Turns[str]("The removal of temporary queues")

    def create(self, name: str, requested: QueueSettings) -> Queue:
        """Create a queue that ends with this service, or let it end with this one from now on."""
        owner = self._parts.consumer.identity().consumer_id
        return self._parts.catalog.create({name: requested}, owner)[name]

    def drop_own(self, consumer_id: str) -> None:
        """Drop the temporary queues of this consumer, which is stopping.

        If that fails now, the reaper of any service drops them later. Those that a forked child
        knows may belong to its parent, which continues.
        """
        catalog = self._parts.catalog
        for name in sorted(catalog.made_temporary):
            catalog.made_temporary.pop(name, None)
            self._drop(Ending(name, "", consumer_id, None, orphaned=True, used=False, now=0))

    def keep_own(self) -> None:
        """Let the queues of this service end with its present registration.

        It registers anew after its consumer was declared dead, although its process lives. Its
        reply queue stays with the former consumer, since each has another one.
        """
        parts = self._parts
        system, prefix, me = parts.system(), parts.settings.table_prefix, parts.consumer.consumer_id
        if me is None:
            return
        for name, former in self._own():
            if former == me:
                continue
            change = partial(
                hand_over, system=system, prefix=prefix, name=name, former=former, owner=me
            )
            made = parts.catalog.made_temporary
            if parts.connections.run(change):
                made[name] = me
            elif made.get(name) == former:
                # It is gone, unless another thread has just done this.
                made.pop(name, None)

    def _own(self) -> list[tuple[str, str]]:
        is_own = self._parts.consumer.is_own
        made = sorted(self._parts.catalog.made_temporary.items())
        return [each for each in made if is_own(each[1]) and not is_for_replies(*each)]

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
        orphans = {(each.name, each.owner) for each in found if each.orphaned}
        self._orphans = {key: since for key, since in self._orphans.items() if key in orphans}
        ended = {each.name: each for each in found if self._is_over(each)}
        return ReaperReport(dropped=sum(self._drop(ended[name]) for name in self._turns.of(ended)))

    def _is_over(self, seen: Ending) -> bool:
        if not seen.orphaned:
            return self._is_unused(seen)
        if is_for_replies(seen.name, seen.owner):
            return True
        now = elapsed_clock()
        since = self._orphans.setdefault((seen.name, seen.owner), now)
        return now - since >= self._parts.settings.consumer_timeout_us / 1_000_000

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
            self._note_use(seen.name)
        return False

    def _note_use(self, name: str) -> None:
        parts, dialect = self._parts, self._parts.connections.dialect
        system, prefix = parts.system(), parts.settings.table_prefix
        try:
            with parts.connections.giving_way():
                parts.connections.run(lambda c: note_use(c, system, dialect, prefix, name))
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except QueueError as error:
            # The next reaper does it; this queue must not keep the others from their turn.
            _log.info("The use of queue %s is noted later: %s", name, error)

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
        if name not in self._stuck:
            self._stuck.add(name)
            _log.warning("The temporary queue %s cannot be dropped: %s", name, error)
