"""Hot statements on a queue of 100,000 messages that has lived: the intended index, and no sort.

What the acts really send is noted at the driver and then explained by the engine; on PostgreSQL
also as a prepared statement whose plan is kept for all values.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql.testing.plugin import TestDatabase
from tests.engine.old_queue import ACTS, OldQueue, old_queue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CLAIM, _ID = frozenset({"jobs.claim"}), frozenset({"jobs.id"})
_KEY, _ARCHIVE = frozenset({"jobs.key"}), frozenset({"jobs_archive.archive", "jobs_archive.id"})
# What is claimed is found by an index of its own, or in the claim index where that is not partial.
_CLAIMED = {"sqlite": {"jobs.lease"}, "postgresql": {"jobs.lease"}, "": {"jobs.claim"}}

READS: dict[str, Any] = {
    "claim": _CLAIM | _ID,
    "look": _CLAIM,
    "read": _CLAIM,
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
    # MySQL reads the index from its beginning where few rows are asked for and few are there.
    "prune": {
        "mysql": (
            _ARCHIVE,
            _ARCHIVE | {"jobs_archive.archive*"},
            {"jobs_archive.archive*", "jobs_archive.id"},
        ),
        "": _ARCHIVE,
    },
    "heartbeat": {"consumers.id"},
    "forget": {"consumers.id"},
    "page": _ID,
    "delete": _ID,
    "edit one": _KEY,
    # These look at all messages where no index happens to hold what they ask for.
    "edit by status": {
        # From 18 on it skips through the index.
        "postgresql": ({"jobs*"}, {"jobs.claim"}),
        "mariadb": {"jobs.id*"},
        "mysql": {"jobs.id*"},
        "": _CLAIM,
    },
    "remove in batches": {
        "sqlite": _ID,
        "h2": _CLAIM,
        "mysql": _CLAIM,
        "": ({"jobs*"}, {"jobs.claim"}),
    },
    # Statistics are counted when asked: in an index that holds all that is asked for.
    "statistics": {
        "sqlite": {"jobs*", "jobs_archive.archive*"},
        "postgresql": {"jobs*", "jobs_archive*"},
        "": {"jobs.claim*", "jobs_archive.archive*"},
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


class _Built:
    """The old queue of each engine, made when it is first asked for."""

    def __init__(self, servers: Any, folder: Path, stack: contextlib.ExitStack) -> None:
        self._servers, self._folder, self._stack = servers, folder, stack
        self._made: dict[str, OldQueue] = {}

    def get(self, engine: str) -> OldQueue:
        if engine not in self._made:
            made = old_queue(TestDatabase(engine, self._database(engine)))
            self._made[engine] = self._stack.enter_context(made)
        return self._made[engine]

    def _database(self, engine: str) -> str:
        if engine == "sqlite":
            return f"sqlite:///{self._folder / 'old.db'}"
        server = self._servers.get(engine)
        url: str = server.create_database("old_queue")
        self._stack.callback(server.drop_database, "old_queue")
        return url


@pytest.fixture(scope="module")
def built(servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Built]:
    with contextlib.ExitStack() as stack:
        yield _Built(servers, tmp_path_factory.mktemp("plans"), stack)


@pytest.fixture
def old(engine_name: str, built: _Built) -> OldQueue:
    """The old queue, which all tests of an engine share: each leaves most of it as it was."""
    return built.get(engine_name)


def _expected(act: str, old: OldQueue) -> list[set[str]]:
    """What the act may read; any of these."""
    longest = max((name for name in READS if act.startswith(name)), key=len)
    reads = READS[longest]
    if isinstance(reads, dict):
        reads = reads.get(old.engine, reads[""])
    if longest == "claim" and not old.queue.context.tables.dialect.skip_locked:
        # Old versions of H2 stamp along the claim index.
        reads = reads - _ID if old.engine == "h2" else reads
    return list(reads) if isinstance(reads, tuple) else [reads]


@pytest.mark.parametrize("act", ACTS)
def test_it_reads_by_its_index_and_sorts_nothing(old: OldQueue, act: str) -> None:
    """Messages, finished ones and consumers are found by the index that is meant for it."""
    if old.engine not in ONLY.get(act.split(maxsplit=1)[0], {old.engine}):
        return
    plans = old.plans(ACTS[act](old))
    assert plans
    for plan in plans:
        assert not plan.sorts, str(plan)
    # The other tables have few rows, and are found by their ids or read as a whole.
    watched = ("jobs", "consumers.")
    reads = {read for plan in plans for read in plan.reads if read.startswith(watched)}
    optional = {"consumers.id"} if act == "find claims of the dead" else set()
    assert reads - optional in _expected(act, old), "\n\n".join(map(str, plans))


@pytest.mark.parametrize("act", PICKS)
def test_a_claim_enters_its_index_at_its_mark(old: OldQueue, act: str) -> None:
    """It reads one level from one instant to another, so neither the dead nor what is due later."""
    if old.engine not in ONLY.get(act.split(maxsplit=1)[0], {old.engine}):
        return
    picks = [p for p in old.plans(ACTS[act](old)) if re.search("available_at >= ", p.statement)]
    assert picks
    for plan in picks:
        assert re.search(FROM_THE_MARK[old.engine], plan.text), str(plan)
