"""What the command `consume` does while its database is away."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, event

from queue_over_sql import DatabaseUnavailable, Message, Queue, QueueService
from queue_over_sql.cli.consume import Consumption, Limits
from queue_over_sql.cli.signals import Stop
from queue_over_sql.service import parts_of
from queue_over_sql.values.backoff import Backoff

pytestmark = pytest.mark.engines("sqlite")

FOLLOWING = Limits(count=2, wait=None, batch=2, lease=None)
ONCE = Limits(count=2, wait=0.0, batch=2, lease=None)


class Outage:
    """Interrupts all statements of an engine while it lasts."""

    def __init__(self, engine: Engine) -> None:
        self.lasts = False
        event.listen(engine, "connect", self._watch)

    def _watch(self, connection: sqlite3.Connection, *_: object) -> None:
        connection.set_progress_handler(lambda: self.lasts, 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command try again soon."""
    monkeypatch.setattr("queue_over_sql.cli.consume.Backoff", lambda *_: Backoff(0.01, 0.01))


@pytest.fixture
def service(sqlite_url: str) -> QueueService:
    """The service of the command, which is not connected yet."""
    return QueueService(sqlite_url)


@pytest.fixture
def outage(service: QueueService) -> Outage:
    """Of the command's database."""
    return Outage(parts_of(service).connections.engine)


@pytest.fixture
def jobs(service: QueueService, outage: Outage) -> Iterator[Queue]:
    """The queue of the command, with two messages."""
    with service:
        queue = service.create_queue("jobs")
        queue.publish_many([1, 2])
        yield queue
        outage.lasts = False


def _consumption(
    queue: Queue, outage: Outage, limits: Limits, handle: Callable[[Message], str | None]
) -> tuple[Consumption, list[str]]:
    """One whose outages begin while a message is handled, and end with the first warning."""
    warnings: list[str] = []

    def handler(message: Message) -> str | None:
        outage.lasts = True
        return handle(message)

    def warn(text: str) -> None:
        warnings.append(text)
        outage.lasts = False

    return Consumption(queue, handler, limits, Stop(), warn, lambda: False), warnings


def test_follow_settles_after_an_outage(jobs: Queue, outage: Outage) -> None:
    """What was done is acknowledged, and what failed counts, once each."""
    failures = {1: None, 2: "out of luck"}
    consumption, warnings = _consumption(jobs, outage, FOLLOWING, lambda m: failures[m.payload])
    tally = consumption.run()
    assert (2, 1, 1) == (tally.delivered, tally.done, tally.failed)
    assert 2 == len([text for text in warnings if "Retrying in" in text])
    [left] = jobs.messages().list()
    assert (2, 1, "out of luck") == (left.payload, left.attempt, left.last_error)


def test_follow_gives_back_after_an_outage(jobs: Queue, outage: Outage) -> None:
    """A handler that breaks off costs no other message of its batch its place."""
    consumption, warnings = _consumption(jobs, outage, FOLLOWING, _broken_pipe)
    with pytest.raises(BrokenPipeError):
        consumption.run()
    assert 1 == len([text for text in warnings if "Retrying in" in text])
    assert 2 == jobs.stats().ready


def test_follow_looks_for_a_pause_again_after_an_outage(jobs: Queue, outage: Outage) -> None:
    """An outage at that look ends it no more than one at a claim."""
    jobs.purge()
    consumption, warnings = _consumption(jobs, outage, FOLLOWING, lambda _: None)
    answers: Iterator[DatabaseUnavailable | bool] = iter([DatabaseUnavailable("away"), True])

    def is_paused() -> bool:
        answer = next(answers)
        if isinstance(answer, DatabaseUnavailable):
            raise answer
        consumption.stop.request()
        return answer

    consumption.is_paused = is_paused
    consumption.run()
    assert ["away Retrying in 0 s.", "Queue jobs is paused."] == warnings


@pytest.mark.parametrize("follows", [False, True])
def test_without_follow_or_after_a_stop_an_outage_ends_the_command(
    jobs: Queue, outage: Outage, *, follows: bool
) -> None:
    """With the error."""
    stop = Stop()

    def handle(_: Message) -> None:
        if follows:
            stop.request()

    consumption, warnings = _consumption(jobs, outage, FOLLOWING if follows else ONCE, handle)
    consumption.stop = stop
    with pytest.raises(DatabaseUnavailable):
        consumption.run()
    assert [] == warnings


def _broken_pipe(message: Message) -> None:
    raise BrokenPipeError(message.id)
