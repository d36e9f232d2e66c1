"""The thread that renews leases wakes early only for leases that are due before its next look."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest

from queue_over_sql.consumers.lease_renewal import KeptMessages, LeaseKeeper
from queue_over_sql.errors import ClaimLost
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONG, SHORT = 300_000_000, 150_000


class Renewed:
    """A queue that notes whose lease is renewed."""

    def __init__(self) -> None:
        self.extended: list[Any] = []

    def holds(self, message: Any) -> bool:
        del message
        return True

    def extend(self, messages: Sequence[Any]) -> None:
        self.extended += messages


def message(lease_us: int) -> Any:
    row = mock.Mock(claimed_lease_us=lease_us)
    return mock.Mock(_row=row, settled=False, cancelled=False)


@pytest.fixture
def keeper() -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper()
    yield keeper
    keeper.stop()


def test_a_short_lease_is_renewed_beside_long_ones(keeper: LeaseKeeper) -> None:
    """It comes while the thread sleeps until the long one is due."""
    queue = Renewed()
    short = message(SHORT)
    with keeper.keeping(cast("Any", queue), [message(LONG)]):
        wait_until(lambda: keeper._wakes_at < float("inf"))
        with keeper.keeping(cast("Any", queue), [short]):
            wait_until(lambda: queue.extended.count(short) >= 3)
    assert {short} == set(queue.extended)


@pytest.mark.parametrize("broken", ["thread", "queue"])
def test_an_error_does_not_end_the_renewals(
    keeper: LeaseKeeper, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a thread that cannot be started nor a queue that fails."""
    queue, short = Renewed(), message(SHORT)
    start, failures = keeper._runtime.start, iter([RuntimeError("can't start new thread")])

    def fail_once() -> None:
        for error in failures:
            raise error

    def start_later(name: str, *args: Any, **options: Any) -> Any:
        if broken == "thread" and name == "queue-over-sql-lease":
            fail_once()
        return start(name, *args, **options)

    def holds(_: Any) -> bool:
        if broken == "queue":
            fail_once()
        return True

    with (
        mock.patch.object(keeper._runtime, "start", start_later),
        mock.patch.object(queue, "holds", holds),
        keeper.keeping(cast("Any", queue), [short]),
    ):
        wait_until(lambda: queue.extended.count(short) >= 2)
    assert ["The lease renewal continues after an unexpected error."] == caplog.messages


def test_a_lease_that_is_due_later_wakes_nobody(keeper: LeaseKeeper) -> None:
    """A worker has a batch for each message."""
    queue = cast("Any", Renewed())
    with keeper.keeping(queue, [message(SHORT)]):
        wait_until(lambda: keeper._wakes_at < float("inf"))
        with mock.patch.object(keeper._changed, "notify_all") as woken, contextlib.ExitStack() as s:
            for _ in range(10):
                s.enter_context(keeper.keeping(queue, [message(LONG)]))
        woken.assert_not_called()


def test_nothing_is_renewed_for_what_is_settled(keeper: LeaseKeeper) -> None:
    """Nobody looks for messages any more, until some are kept again."""
    queue = Renewed()
    kept = KeptMessages(keeper, cast("Any", queue))
    for _ in range(2):
        one = message(SHORT)
        kept.add([one])
        wait_until(lambda: one in queue.extended)  # noqa: B023 - runs at once
        assert 1 == len(keeper._holdings)
        one.settled = True
        wait_until(lambda: not keeper._holdings)


def test_what_was_given_back_is_not_logged_as_lost(
    keeper: LeaseKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """Its release may end later than the renewal that misses it."""
    behind, lost = message(SHORT), message(SHORT)
    in_hand = [behind, lost]
    queue = Renewed()

    def missed(messages: Sequence[Any]) -> None:
        in_hand[:] = [lost]
        raise ClaimLost("jobs", messages)

    def cancelled(each: Any) -> None:
        each.cancelled = True

    with (
        mock.patch.object(queue, "extend", missed),
        mock.patch("queue_over_sql.consumers.lease_renewal.note_cancelled", cancelled),
    ):
        keeper.holding(lambda: cast("Any", queue), lambda: {0: list(in_hand)})([behind, lost])
        wait_until(lambda: behind.cancelled and lost.cancelled)
    [text] = caplog.messages
    assert (True, False) == (repr(lost) in text, repr(behind) in text)
