"""Deaths: which consumers are declared dead. A heartbeat that a lock delays is no death.

A heartbeat that is overdue is not enough, because another transaction may have locked the table of
consumers. So a reaper declares a death under the lock of the consumer's row. After a time in which
it could not write there itself, it first lets the heartbeats of all others come through. If others
had locked a consumer's row, that one gets the same time, from when its row was first seen free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from queue_over_sql.consumers import registrations
from queue_over_sql.errors import DatabaseUnavailable
from queue_over_sql.sql.sessions import BRIEF_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.settings import ServiceSettings


_BATCH: Final = 500
_NEVER: Final = float("-inf")
_UNSEEN: Final = (_NEVER, True)


def _hold_nothing(_: Sequence[str]) -> Mapping[str, int]:
    return {}


class Deaths:
    """Declares consumers dead, and spares those whose heartbeat a lock may have delayed."""

    def __init__(
        self,
        connections: Connections,
        system: Callable[[], SystemTables],
        settings: ServiceSettings,
        clock: Callable[[], float],
    ) -> None:
        self._connections = connections
        self._system = system
        self._clock = clock
        self.held: Callable[[Sequence[str]], Mapping[str, int]] = _hold_nothing
        """How many messages consumers hold in all queues, by their ids; the service sets it."""
        self.grace = settings.consumer_timeout_us / 3_000_000 + 2 * BRIEF_SECONDS
        """Seconds for a heartbeat to come through after a lock: one interval, and two waits."""
        # When this service could not write a heartbeat, or not even read them.
        self._blocked_at = _NEVER
        # Overdue consumers whose rows others had locked: when that was last looked at, and whether
        # the row was free then.
        self._spared: dict[str, tuple[float, bool]] = {}

    def note_blocked(self) -> None:
        """Note that this service cannot write heartbeats now, so that others may not either."""
        self._blocked_at = self._clock()

    def declare(self) -> list[str]:
        """Declare consumers dead whose heartbeat is overdue.

        Returns:
            The ids of all that are declared dead and still registered.

        Raises:
            Locked: others hold a lock on all consumers, so nothing was declared.
        """
        try:
            return self._declare()
        except DatabaseUnavailable:
            self.note_blocked()
            raise

    def _declare(self) -> list[str]:
        run, system = self._connections.run, self._system()
        expressions = self._connections.dialect.expressions
        overdue = run(lambda c: registrations.overdue(c, system, expressions))
        dead = [consumer_id for consumer_id, declared in overdue.items() if declared]
        spared = {each: seen for each, seen in self._spared.items() if overdue.get(each) is False}
        since = self._clock() - self.grace
        due = [
            each
            for each, declared in overdue.items()
            if not declared and max(self._blocked_at, spared.get(each, _UNSEEN)[0]) <= since
        ]
        for first in range(0, len(due), _BATCH):
            batch = due[first : first + _BATCH]
            waiting = {each for each in batch if not spared.get(each, _UNSEEN)[1]}
            dying = [each for each in batch if each not in waiting]
            held = self.held(dying) if dying else None
            free = run(
                registrations.declare_dead.of(system, expressions, batch, held=held, spared=waiting)
            )
            dead += sorted(free - waiting)
            seen_at = self._clock()
            spared |= {each: (seen_at, each in free) for each in batch}
        self._spared = spared
        return dead
