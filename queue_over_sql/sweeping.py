"""Sweeping: what crashed writers left behind is dropped, a chore of every reaper."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from queue_over_sql.errors import DatabaseUnavailable, QueueError, ServiceClosed
from queue_over_sql.pacing import Pace
from queue_over_sql.restoring import ReaperReport
from queue_over_sql.store import stages as store

if TYPE_CHECKING:
    from queue_over_sql.parts import ServiceParts

_log = logging.getLogger(__name__)

# How long the publisher of a batch has to drop its stages before others do.
_PATIENCE_US: Final = 300_000_000
_SWEEP_SECONDS: Final = 60.0


class StageSweeper:
    """Drops what crashed writers left behind; a chore of every reaper."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._pace = Pace(_SWEEP_SECONDS, ready=True)
        self._refused: set[str] = set()

    def sweep_if_due(self) -> ReaperReport:
        """Sweep, but not more often than once a minute.

        Raises:
            DatabaseUnavailable: it was cut short.
        """
        if not self._pace.due():
            return ReaperReport()
        with self._pace.running():
            return ReaperReport(swept=self.sweep())

    def sweep(self) -> int:
        """Drop stages that nobody publishes any more, forget old commits; returns how many stages.

        Raises:
            DatabaseUnavailable: it was cut short.
        """
        connections, system = self._parts.connections, self._parts.system()
        dialect = connections.dialect
        connections.run(lambda c: store.prune_commits(c, system, dialect))
        names = connections.run(
            lambda c: store.orphaned_stages(c, system, dialect, patience=_PATIENCE_US)
        )
        return sum(self._drop(name) for name in names)

    def _drop(self, name: str) -> bool:
        """Drop one; that it is refused, as another's table may be, keeps no other from it."""
        connections, system = self._parts.connections, self._parts.system()
        try:
            connections.run(lambda c: store.drop_stages(c, system, [name]), atomic=True)
        except (DatabaseUnavailable, ServiceClosed):
            raise
        except QueueError as error:
            if name not in self._refused:
                self._refused.add(name)
                _log.warning("The stage %s cannot be dropped: %s", name, error)
            return False
        return True
