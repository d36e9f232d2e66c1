"""Which messages of dead consumers may run together, and what their reasons keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_over_sql.consumers.isolation import Isolation
from queue_over_sql.recovery.dead_claims import DeadHolder
from queue_over_sql.recovery.suspects import keeping_last_error, may_run_together, reason_of_death
from queue_over_sql.values.reasons import CONSUMER_DIED, LEASE_EXPIRED
from tests.forks import in_a_child

if TYPE_CHECKING:
    import pytest

HOLDER = DeadHolder("jobs", "alpha", 7, durable=False, late=True)


def test_fewer_run_together_after_each_death() -> None:
    """At the third death at most a message of up to 1,023 is alone; nothing else is a suspect."""
    for held in (1, 2, 4, 15, 16, 100, 1023):
        alone, deaths = held, 0
        while alone > 1:
            reason = keeping_last_error(reason_of_death("c", HOLDER, alone - 1), "ValueError: no")
            together = may_run_together(reason)
            assert together is not None
            assert together < alone
            alone, deaths = together, deaths + 1
        assert deaths <= 2, held
        assert held >= 16 or deaths <= 1, held
    durable = DeadHolder("stream", "alpha", 7, durable=True, late=True)
    for other in (None, "", "ValueError: no", LEASE_EXPIRED, reason_of_death("c", durable, 9)):
        assert may_run_together(other) is None, other
    assert 1 == may_run_together(reason_of_death("gone", None, 0))


def test_the_last_real_error_is_kept() -> None:
    """However often consumers died or leases expired since."""
    first = keeping_last_error(reason_of_death("c", HOLDER, 3), "ValueError: no\nmore")
    died = f"{CONSUMER_DIED} and 3 others: jobs, process 7 on host alpha"
    assert f"{died}\nThe last error before: ValueError: no\nmore" == first
    second = keeping_last_error(LEASE_EXPIRED, first)
    assert f"{LEASE_EXPIRED}\nThe last error before: ValueError: no\nmore" == second
    assert first == keeping_last_error(died, second)
    assert died == keeping_last_error(died, LEASE_EXPIRED) == keeping_last_error(died, None)
    assert 20_000 == len(keeping_last_error(died, "x" * 30_000))


class _Hands:
    """A worker, as others of its process see it."""

    full = calling = True

    def in_hand(self) -> list[str]:
        """Nothing that can be seen."""
        return ["queue others: messages: unknown"]

    def wake(self) -> None:
        """It needs no call."""


def test_suspects_wait_for_handlers_and_only_for_a_while_for_what_seems_in_hand(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However long a handler runs; from its end on no mistake in the count can stop them."""
    now, hands, holder = [0.0], _Hands(), _Hands()
    isolation = Isolation(lambda: now[0])
    isolation.join(hands)
    assert isolation.begin(holder)
    for _ in range(10):
        now[0] += 100.0
        assert not isolation.is_alone()
    hands.calling = False
    now[0] += 29.0
    assert not isolation.is_alone()
    assert "" == caplog.text
    now[0] += 2.0
    assert isolation.is_alone()
    assert "still has in hand: queue others: messages: unknown" in caplog.text
    caplog.clear()
    hands.full = False
    assert isolation.is_alone()
    assert "" == caplog.text


def test_a_forked_child_waits_for_no_suspects_of_its_parent() -> None:
    """Neither for those of a worker, nor for a caller that asked for some."""
    hands = _Hands()
    isolation = Isolation(lambda: 0.0)
    isolation.join(hands)
    assert not isolation.admits_suspects()
    assert isolation.stops_workers()
    assert in_a_child(lambda: not isolation.stops_workers())
    held = Isolation(lambda: 0.0)
    held.join(hands)
    assert held.begin(hands)
    assert in_a_child(held.admits_suspects)
    assert in_a_child(lambda: not held.has_workers)
    for isolated, free in ((held, False), (isolation, True)):
        with isolated.claiming() as allowed:
            assert allowed is free

    def allowed_in_a_child() -> bool:
        with held.claiming() as allowed:
            return allowed

    assert in_a_child(allowed_in_a_child)
