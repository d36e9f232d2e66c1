"""Pruning: archived messages that are too old or too many, and keys past their dedup window."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from queue_over_sql.archive.operations import Place, last_to_prune, prune_archive
from queue_over_sql.observer import ReaperReport
from queue_over_sql.publishing.deduplication import prune_keys
from queue_over_sql.values.backoff import RateLimit
from queue_over_sql.values.durations import MICROSECOND
from queue_over_sql.values.states import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql.queues.context import QueueContext

# Fewer commits, because nobody else needs what is removed.
_BATCH: Final = 2_500
# How long the removal of one kind of rows may take before other work has its turn.
_TURN_SECONDS: Final = 0.5


class Pruning:
    """Removes what one queue keeps no longer, as a task of the reaper."""

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        # Counting reads the whole archive, so it has a rate limit of its own.
        self._counting = {outcome: RateLimit(0.0, ready=True) for outcome in Outcome}
        # Age, number and the last place to prune by them, where a turn ended before it got there.
        self._unfinished: dict[Outcome, tuple[tuple[int | None, int | None], Place]] = {}

    def prune(
        self, *, patient: bool = False, spare: Callable[[float], None] | None = None
    ) -> ReaperReport:
        """Remove archived messages that are too old or too many, and expired keys, for one turn.

        Args:
            patient: count archived messages only in some passes if that is slow.
            spare: gets the seconds of each removal, because a removal is no reason to pause.
        """
        settings, sql, run = self._context.settings, self._context.sql, self._context.run
        pruned = sum(self._prune_outcome(outcome, spare, patient=patient) for outcome in Outcome)
        if settings.dedup_window is not None:
            _in_turn(lambda: run(prune_keys.of(sql, _BATCH)), spare)
        return ReaperReport(pruned=pruned)

    def _prune_outcome(
        self, outcome: Outcome, spare: Callable[[float], None] | None, *, patient: bool
    ) -> int:
        context, sql = self._context, self._context.sql
        ttl, keep = context.settings.kept_for(outcome), context.settings.kept_count(outcome)
        rule = None if ttl is None else ttl // MICROSECOND, keep
        # What the last turn did not finish is old enough or too many without counting again.
        before, up_to = self._unfinished.pop(outcome, (None, None))
        if before != rule or up_to is None:
            up_to = self._last_to_prune(outcome, *rule, patient=patient)
        if up_to is None:
            return 0
        since, last = 0, up_to

        def prune() -> int:
            nonlocal since
            removed, since = context.run(prune_archive.of(sql, outcome, (since, last), _BATCH))
            return removed

        pruned, ended = _in_turn(prune, spare)
        if not ended:
            self._unfinished[outcome] = rule, up_to
        return pruned

    def _last_to_prune(
        self, outcome: Outcome, age: int | None, keep: int | None, *, patient: bool
    ) -> Place | None:
        context, counting = self._context, self._counting[outcome]
        if keep is not None and not counting.due() and patient:
            keep = None
        if age is None and keep is None:
            return None
        with contextlib.nullcontext() if keep is None else counting.running():
            return context.run(lambda c: last_to_prune(c, context.sql, outcome, ttl=age, keep=keep))


def _in_turn(remove: Callable[[], int], spare: Callable[[float], None] | None) -> tuple[int, bool]:
    """Remove batches for one turn; returns how many rows, and whether nothing is left."""
    removed, began = 0, time.monotonic()
    while True:
        batch = remove()
        removed += batch
        ended, lasted = batch < _BATCH, time.monotonic() - began
        if ended or lasted > _TURN_SECONDS:
            break
    if removed and spare is not None:
        spare(lasted)
    return removed, ended
