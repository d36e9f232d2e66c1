"""Hot statements on a long queue that has lived: the intended index, and no sort.

What the acts really send is noted at the driver and then explained by the engine; on PostgreSQL
also as a prepared statement whose plan is kept for all values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql.queue import core_of
from tests.dialects.plans.hot_statements import ACTS, OldQueue, old_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from queue_over_sql.testing.plugin import TestDatabase
    from tests.dialects.plans.explain import Plan

_CLAIM, _ID = frozenset({"jobs.claim"}), frozenset({"jobs.id"})
_KEY, _ARCHIVE = frozenset({"jobs.key"}), frozenset({"jobs_archive.archive", "jobs_archive.id"})
# What is claimed is found by an index of its own, or in the claim index where that is not partial.
_CLAIMED = {"sqlite": {"jobs.lease"}, "postgresql": {"jobs.lease"}, "": {"jobs.claim"}}

READS: dict[str, Any] = {
    "claim": _CLAIM | _ID,
    "look": _CLAIM,
    "read": _CLAIM,
    "hold": _ID,
    "take": _CLAIM | _ID,
    "ack": _ID,
    "exchange": _CLAIM | _ID,
    "at once": _CLAIM | _ID,
    "nack": _ID,
    "release": _ID,
    "reject": _ID,
    "extend": _ID,
    "give": _CLAIMED,
    "find expired leases": _CLAIMED,
    "find claims of the dead": _CLAIMED,
    "find dead consumers": set(),
    "publish, key skipped": _KEY,
    "publish, key replaced": _KEY | _ID,
    "publish 100, keys skipped": _KEY,
    "find a reply": _KEY,
    "withdraw": _ID,
    # The index of errors begins with the outcome, too.
    # H2 may take it to find the first message to keep.
    "prune": {"h2": (_ARCHIVE, _ARCHIVE | {"jobs_archive.err"}), "": _ARCHIVE},
    "heartbeat": {"consumers.id"},
    "declare": {"consumers.id"},
    "forget": {"consumers.id"},
    "page": _ID,
    "why": _CLAIM | _ID,
    "delete": _ID,
    "edit one": {"mysql": _KEY | _ID, "mariadb": _KEY | _ID, "": _KEY},
    # These look at all messages where no index happens to hold what they ask for.
    "edit by status": {
        # From 18 on it skips through the index.
        "postgresql": ({"jobs*"}, {"jobs.claim"}),
        "": _CLAIM,
    },
    # First a window of the ids; these are rare there, so the status finds the few that there are.
    "remove in batches": {
        "postgresql": (_ID | {"jobs*"}, _ID | _CLAIM),
        "": _ID | _CLAIM,
    },
    # Statistics are counted when asked: in an index that holds all that is asked for.
    "statistics": {
        "sqlite": {"jobs*", "jobs_archive.archive*"},
        "postgresql": {"jobs*", "jobs_archive*"},
        "": (
            {"jobs.claim*", "jobs_archive.archive*"},
            {"jobs.claim*", "jobs_archive.err*"},
        ),
    },
}
"""What each act may read, by the longest beginning of its name; by engine where that matters.

A tuple holds several sets, any of which will do.
"""

# Only such engines use them.
ONLY = {"look": {"sqlite", "h2"}, "read": {"h2"}, "at": {"postgresql"}}
PICKS = [act for act in ACTS if act.startswith(("claim", "take", "at once"))]
FROM_THE_MARK = {
    "sqlite": r"claim_ix \(priority=\? AND available_at>\? AND available_at<\?\)",
    "postgresql": r"_claim_ix .*\n\s+Index Cond: .*priority = .*available_at >= .*available_at <= ",
    "mariadb": r'"used_key_parts": \["consumer_id", "priority", "available_at"\]',
    "mysql": r'"used_key_parts": \[\s*"consumer_id",\s*"priority",\s*"available_at"\s*\]',
    "h2": r"_CLAIM_IX: (?=[^*]*PRIORITY = )(?=[^*]*AVAILABLE_AT >= )[^*]*AVAILABLE_AT <= ",
}


@pytest.fixture
def old(database: TestDatabase) -> Iterator[OldQueue]:
    with old_queue(database) as made:
        yield made


def _expected(act: str, old: OldQueue) -> list[set[str]]:
    """What the act may read; any of these."""
    longest = max((name for name in READS if act.startswith(name)), key=len)
    reads = READS[longest]
    if isinstance(reads, dict):
        reads = reads.get(old.engine, reads[""])
    if longest == "claim" and not core_of(old.queue).context.tables.features.skip_locked:
        # Old versions of H2 stamp along the claim index.
        reads = reads - _ID if old.engine == "h2" else reads
    return list(reads) if isinstance(reads, tuple) else [reads]


@pytest.mark.timeout(300)
def test_acts_read_by_their_indexes_and_sort_nothing(old: OldQueue) -> None:
    """Messages, finished ones and consumers are found by the index that is meant for them.

    A claim enters its index at its mark: it reads one level from one instant to another, so neither
    the dead rows before nor what is due later. All acts share one queue, which takes seconds to
    build: each leaves most of it as it was.
    """
    wrong = {act: found for act in ACTS if (found := _wrong_plans(old, act))}
    assert not wrong, "\n\n".join(f"{act}: {plans}" for act, plans in wrong.items())


def _wrong_plans(old: OldQueue, act: str) -> str:
    """The plans of an act, if any is not as it should be."""
    if old.engine not in ONLY.get(act.split(maxsplit=1)[0], {old.engine}):
        return ""
    plans = old.plans(ACTS[act](old))
    # The other tables have few rows, and are found by their ids or read as a whole.
    watched = ("jobs", "consumers.")
    reads = {read for plan in plans for read in plan.reads if read.startswith(watched)}
    asks_for_holders = act.startswith(("find claims of the dead", "why"))
    optional = {"consumers.id"} if asks_for_holders else set()
    fine = (
        plans
        and not any(plan.sorts for plan in plans if not _of_few_rows(act, plan))
        and reads - optional in _expected(act, old)
        and (act not in PICKS or _enters_at_the_mark(old.engine, plans))
    )
    return "" if fine else f"reads {reads}\n" + "\n\n".join(map(str, plans))


def _of_few_rows(act: str, plan: Plan) -> bool:
    """Whether it reads the living consumers, or is the plan for any window of ids.

    The latter does not know how small the window is. PostgreSQL prefers the plan for the very
    window, because that is cheaper.
    """
    if act.startswith("why") and not any(read.startswith("jobs") for read in plan.reads):
        return True
    generic = plan.statement.startswith("GENERIC: ") and plan.reads == {"jobs.id"}
    return generic and act == "remove in batches"


def _enters_at_the_mark(engine: str, plans: Sequence[Plan]) -> bool:
    picks = [plan for plan in plans if re.search("available_at >= ", plan.statement)]
    return bool(picks) and all(re.search(FROM_THE_MARK[engine], plan.text) for plan in picks)
