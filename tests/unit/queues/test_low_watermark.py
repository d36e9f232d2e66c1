"""The low watermark alone: when a claim searches from the beginning, and when not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql.claiming import low_watermark
from queue_over_sql.claiming.low_watermark import SLACK_US, LowWatermark
from queue_over_sql.message import MessageRow

if TYPE_CHECKING:
    from collections.abc import Sequence

CHEAP, DEAR = 0.0005, 0.1


class Clock:
    """A monotonic clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(low_watermark, "time", clock)
    return clock


pytestmark = pytest.mark.usefixtures("clock")


def rows(*available_at: int) -> Sequence[MessageRow]:
    """Claimed rows that were due at these instants."""
    blank = MessageRow(*[None] * 20)  # type: ignore[arg-type]
    return [blank._replace(id=n, available_at=at) for n, at in enumerate(available_at)]


def settled(mark: LowWatermark, cost: float) -> None:
    """Two full looks, so that one slow measurement alone decides nothing."""
    clock: Any = vars(low_watermark)["time"]
    for _ in range(2):
        clock.now += 2 * cost
        mark.claimed(rows(5_000_000), wanted=1, low=0, seconds=cost)


def test_the_first_claim_looks_fully() -> None:
    """Nothing is known yet."""
    assert 0 == LowWatermark().bound()


def test_under_load_a_claim_starts_below_the_last_by_the_slack() -> None:
    """Publishers that commit out of order within the slack are not passed over."""
    mark = LowWatermark()
    settled(mark, CHEAP)
    assert 5_000_000 - SLACK_US == mark.bound()


def test_under_load_a_full_look_comes_once_a_second(clock: Clock) -> None:
    """Late messages wait a second at most on a healthy table."""
    mark = LowWatermark()
    settled(mark, CHEAP)
    clock.now += 0.99
    assert mark.bound() > 0
    clock.now += 0.02
    assert 0 == mark.bound()


def test_a_dear_full_look_takes_a_twentieth_of_the_time(clock: Clock) -> None:
    """On a bloated table the pause is twenty times the cost, under load and when idle."""
    mark = LowWatermark()
    settled(mark, DEAR)
    clock.now += 1.9
    assert mark.bound() > 0
    mark.claimed([], wanted=1, low=1, seconds=CHEAP)
    assert mark.bound() > 0
    assert not mark.may_look_fully()
    clock.now += 0.2
    assert 0 == mark.bound()
    assert mark.may_look_fully()


def test_one_slow_look_is_forgiven(clock: Clock) -> None:
    """The cheaper of the last two counts: the machine may have been busy."""
    mark = LowWatermark()
    settled(mark, CHEAP)
    clock.now += 10.0
    mark.claimed([], wanted=1, low=0, seconds=5.0)
    assert mark.may_look_fully()


def test_threads_that_were_stalled_together_measured_one_stall(clock: Clock) -> None:
    """A lock that held up four looks at once does not make full looks dear."""
    mark = LowWatermark()
    settled(mark, CHEAP)
    clock.now += 10.0
    for _ in range(4):
        mark.claimed([], wanted=1, low=0, seconds=4.0)
    assert mark.may_look_fully()


def test_an_idle_healthy_queue_is_always_looked_at_fully() -> None:
    """A short claim on a table where a full look costs nothing leaves no blind spot."""
    mark = LowWatermark()
    settled(mark, CHEAP)
    mark.claimed(rows(5_000_000), wanted=2, low=1, seconds=CHEAP)
    assert 0 == mark.bound()


def test_what_comes_back_lowers_the_mark() -> None:
    """A consumer that gives messages back finds them again at once."""
    mark = LowWatermark()
    settled(mark, CHEAP)
    mark.lower(1_000)
    assert 1_000 == mark.bound()
    mark.lower()
    assert 0 == mark.bound()
