"""The thread that renews leases wakes early only for leases that are due before its next look."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest

from queue_over_sql.consumers.lease_renewal import LeaseKeeper
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
