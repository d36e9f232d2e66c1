"""Temporary queues: they end with their consumer, or when no consumer has used them for a while."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from queue_over_sql.errors import DatabaseUnavailable, Locked, QueueError, ServiceClosed
from queue_over_sql.observer import ReaperReport
from queue_over_sql.queues.temporary import Ending, ending_queues, has_ended, note_use
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
            catalog.made_temporary.discard(name)
            self._drop(Ending(name, "", consumer_id, None, orphaned=True, used=False, now=0))

    def reap(self) -> ReaperReport:
        """Drop the temporary queues of all consumers that expired or are gone, and unused ones."""
        parts, dialect = self._parts, self._parts.connections.dialect
        system, prefix = parts.system(), parts.settings.table_prefix
        found = parts.connections.run(lambda c: ending_queues(c, system, dialect, prefix))
        ended = {each.name: each for each in found if each.orphaned or self._is_unused(each)}
        return ReaperReport(dropped=sum(self._drop(ended[name]) for name in self._turns.of(ended)))

    def _is_unused(self, seen: Ending) -> bool:
        """Whether a queue has been unused for too long; notes it if it is in use."""
        parts, dialect = self._parts, self._parts.connections.dialect
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
            system, prefix = parts.system(), parts.settings.table_prefix
            parts.connections.run(lambda c: note_use(c, system, dialect, prefix, seen.name))
        return False

    def _drop(self, seen: Ending) -> bool:
        parts, dialect = self._parts, self._parts.connections.dialect
        system, prefix = parts.system(), parts.settings.table_prefix
        try:
            dropped = parts.catalog.drop(
                seen.name, only_if=lambda c: has_ended(c, system, dialect, prefix, seen)
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
