"""Retention: how long, and how many, finished messages are kept by outcome."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, literal, select

from queue_over_sql import FixedDelay, QueueSettings
from queue_over_sql.archive import pruning
from queue_over_sql.queue import core_of
from queue_over_sql.sql.operation import Operation
from tests.contract.queue_state import (
    ARGUMENT_ERRORS,
    archived,
    counts,
    finished,
    outcomes,
    payloads,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

ALL = ["done", "failed", "rejected"]


def make_jobs(service: QueueService, **settings: Any) -> Queue:
    """A queue that archives all, with one attempt for each message."""
    return service.create_queue(
        "jobs", **{"archive": "all", "max_attempts": 1, "retry": FixedDelay(0), **settings}
    )


def finish_some(queue: Queue, count: int, which: list[str] | None = None) -> None:
    """For each outcome publish and finish so many messages; the payload tells the order."""
    for outcome in which or ALL:
        queue.publish_many(f"{outcome} {number}" for number in range(count))
        for _ in range(count):
            finished(queue, outcome)


def reap_until(service: QueueService, kept: list[str], queue: Queue) -> None:
    """Make passes of the reaper until exactly these payloads are archived."""
    wait_until(
        lambda: service.reap() is not None and kept == payloads(queue.archive.messages().list(2000))
    )


# ---------------------------------------------------------------- by age


def test_each_outcome_has_an_age_of_its_own(service: QueueService) -> None:
    """What passed its time goes; what has a longer one, none, or is not named, stays."""
    queue = make_jobs(
        service, archive_ttl={"done": 0.05, "failed": timedelta(hours=1), "rejected": None}
    )
    finish_some(queue, 2)
    reap_until(service, ["failed 0", "failed 1", "rejected 0", "rejected 1"], queue)
    make_jobs(service, archive_ttl={"rejected": 0.05})
    reap_until(service, ["failed 0", "failed 1"], queue)
    service.reap()
    assert ["failed", "failed"] == outcomes(queue)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a setting by Python's rules")
def test_one_age_is_for_every_outcome(service: QueueService) -> None:
    """A plain duration, and live messages are not touched by it."""
    queue = make_jobs(service, archive_ttl=0.05)
    finish_some(queue, 1)
    queue.publish_many(["live", "held"])
    reap_until(service, [], queue)
    assert (2, 0, 0) == counts(queue)


# ---------------------------------------------------------------- by count


def test_each_outcome_keeps_its_newest(service: QueueService) -> None:
    """So many of each as the setting says; what it does not name is kept."""
    queue = make_jobs(service, archive_limit={"done": 2, "failed": 1})
    finish_some(queue, 4)
    reap_until(
        service, ["done 2", "done 3", "failed 3", *(f"rejected {n}" for n in range(4))], queue
    )
    assert 0 == service.reap().pruned


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a setting by Python's rules")
def test_one_limit_is_for_every_outcome(service: QueueService) -> None:
    """A plain number is the number of each, not of all together."""
    queue = make_jobs(service, archive_limit=2)
    finish_some(queue, 3)
    reap_until(service, [f"{outcome} {n}" for outcome in ALL for n in (1, 2)], queue)


def test_the_newest_are_those_that_finished_last(service: QueueService) -> None:
    """Not those that were published last."""
    queue = make_jobs(service, archive_limit=1)
    first, second = queue.publish_many(["first", "second"])
    messages = {message.id: message for message in queue.consume(2)}
    messages[second.id].ack()
    time.sleep(0.01)  # the clock of SQLite counts milliseconds
    messages[first.id].ack()
    reap_until(service, ["first"], queue)


def test_what_has_time_and_is_not_too_many_is_kept(service: QueueService) -> None:
    """Before the age is reached, and up to exactly the limit."""
    queue = make_jobs(
        service,
        archive_ttl={"done": 3600, "failed": 3600},
        archive_limit={"done": 3, "rejected": 10},
    )
    finish_some(queue, 3)
    assert 0 == service.reap().pruned
    assert {"done": 3, "failed": 3, "rejected": 3} == dict(Counter(outcomes(queue)))


def test_age_and_count_work_together(service: QueueService) -> None:
    """Whichever comes first; a queue without either keeps its own."""
    queue = make_jobs(service, archive_ttl={"rejected": 0.05}, archive_limit={"done": 1})
    other = service.create_queue("other", archive="all")
    other.publish("kept")
    finished(other, "done")
    finish_some(queue, 2, ["done", "rejected"])
    reap_until(service, ["done 1"], queue)
    assert ["kept"] == payloads(archived(other))


# ---------------------------------------------------------------- many


@pytest.mark.parametrize("by", ["age", "count"])
def test_many_are_pruned_in_batches(service: QueueService, by: str) -> None:
    """More than any one batch: in the end exactly those go that have to, each counted once."""
    queue = make_jobs(service)
    queue.load(range(1300))
    for _ in range(13):
        finished(queue, "done", 100)
    queue.publish("dead")
    finished(queue, "rejected")
    keep = {"archive_ttl": {"done": 0.05}} if by == "age" else {"archive_limit": {"done": 20}}
    make_jobs(service, **keep)
    left = [] if by == "age" else [*range(1280, 1300)]
    pruned = 0

    def enough() -> bool:
        nonlocal pruned
        pruned += service.reap().pruned
        return pruned >= 1300 - len(left)

    wait_until(enough)
    assert 1300 - len(left) == pruned
    assert 0 == service.reap().pruned
    assert [*left, "dead"] == payloads(queue.archive.messages().list(2000))


def fill_archive(queue: Queue, count: int) -> None:
    """Put so many messages into the archive that finished long ago."""
    context = core_of(queue).context
    live, archive = context.tables.live, context.tables.archive
    names = [column.name for column in live.c]
    ended = select(*live.c, live.c.id, literal("done"))
    copied = insert(archive).from_select([*names, "finished_at", "outcome"], ended)
    queue.load(range(count))
    context.run(Operation(lambda c: c.execute(copied), atomic=True))
    queue.purge()


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a number of Python's")
def test_a_turn_prunes_as_much_as_there_is_time_for(service: QueueService) -> None:
    """Not a fixed number, which a busy queue finishes faster than the passes come."""
    queue = make_jobs(service)
    fill_archive(queue, 12_000)
    make_jobs(service, archive_ttl=1)
    assert 12_000 == service.reap().pruned


@pytest.mark.threads("operations of the core that both faces run")
def test_a_turn_is_bounded_and_the_next_one_goes_on(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each queue gets a turn; a later one continues without counting again, to the exact number.

    A limit that was raised meanwhile holds.
    """
    monkeypatch.setattr(pruning, "_TURN_SECONDS", 0.0)
    monkeypatch.setattr(pruning, "_BATCH", 20)
    queue, other = make_jobs(service), service.create_queue("other", archive="all")
    for each in (queue, other):
        fill_archive(each, 70)
    make_jobs(service, archive_limit=5)
    service.create_queue("other", archive="all", archive_ttl=1)
    assert 40 == service.reap().pruned
    spared: list[float] = []
    parts = core_of(queue).pruning, core_of(other).pruning
    assert [20, 20] == [each.prune(patient=True, spare=spared.append).pruned for each in parts]
    assert 2 == len([seconds for seconds in spared if seconds > 0])
    make_jobs(service, archive_limit=25)
    queue.refresh()
    assert [5, 0] == [parts[0].prune(spare=spared.append).pruned for _ in range(2)]
    assert 25 == queue.stats().archived
    assert 30 == sum(parts[1].prune().pruned for _ in range(3))
    assert 0 == other.stats().archived


@pytest.mark.default_on("sqlite", "postgresql")
def test_reapers_at_once_prune_no_more_than_they_should(make_service: MakeService) -> None:
    """Two that count at the same moment do not both remove the difference."""
    services = [make_service() for _ in range(3)]
    queue = make_jobs(services[0])
    queue.load(range(700))
    finished(queue, "done", 700)
    for service in services:
        make_jobs(service, archive_limit=50)

    def reap(service: QueueService) -> int:
        return sum(service.reap().pruned for _ in range(4))

    with ThreadPoolExecutor(3) as pool:
        pruned = sum(pool.map(reap, services))
    assert 650 == pruned
    assert (0, 0, 50) == counts(queue)


@pytest.mark.engines("sqlite")
@pytest.mark.threads("a thread of Python's")
def test_a_started_service_prunes_by_itself(make_service: MakeService) -> None:
    """The embedded reaper does it at its interval."""
    with make_service(reaper_interval=0.05) as service:
        queue = make_jobs(service, archive_ttl={"done": 0.05}, archive_limit={"rejected": 1})
        finish_some(queue, 2)
        wait_until(
            lambda: ["failed 0", "failed 1", "rejected 1"] == payloads(archived(queue)), timeout=8
        )


# ---------------------------------------------------------------- settings


@pytest.mark.engines("sqlite")
@pytest.mark.threads("settings by Python's rules")
def test_settings_read_back(make_service: MakeService) -> None:
    """Here and by another service, an age of None being none; not given again they stay."""
    by_outcome = {
        "archive_ttl": {"done": timedelta(days=1), "failed": None},
        "archive_limit": {"done": 1},
    }
    cases: list[tuple[dict[str, Any], tuple[object, object]]] = [
        ({}, (None, None)),
        ({"archive_ttl": 1.5, "archive_limit": 7}, (timedelta(seconds=1.5), 7)),
        (by_outcome, ({"done": timedelta(days=1)}, {"done": 1})),
    ]
    service, other = make_service(), make_service()
    for number, (given, expected) in enumerate(cases):
        name = f"jobs{number}"
        queue = service.create_queue(name, **given)
        assert expected == (queue.settings.archive_ttl, queue.settings.archive_limit)
        seen = other.queue(name).settings
        assert expected == (seen.archive_ttl, seen.archive_limit)
        again = other.create_queues({name: QueueSettings(lease=30)})[name].settings
        assert expected == (again.archive_ttl, again.archive_limit)
        gone = other.create_queue(name, archive_ttl=None, archive_limit=None).settings
        assert gone.archive_ttl is None
        assert gone.archive_limit is None


def test_what_another_service_sets_is_obeyed(make_service: MakeService) -> None:
    """A running reaper learns of it."""
    service = make_service()
    queue = make_jobs(service)
    finish_some(queue, 2)
    service.reap()
    make_jobs(make_service(), archive_limit={"failed": 1}, archive_ttl={"done": 0.05})
    wait_until(
        lambda: (
            service.reap() is not None
            and ["failed 1", "rejected 0", "rejected 1"] == payloads(archived(queue))
        ),
        timeout=8,
    )


REFUSED: list[dict[str, Any]] = [
    {"archive_ttl": -1},
    {"archive_ttl": "a day"},
    {"archive_ttl": {"done": -1}},
    {"archive_ttl": {"done": "a day"}},
    {"archive_ttl": {"ready": 1}},
    {"archive_ttl": {"nonsense": None}},
    {"archive_limit": -1},
    {"archive_limit": 1.5},
    {"archive_limit": True},
    {"archive_limit": {"done": -1}},
    {"archive_limit": {"nonsense": 1}},
]


@pytest.mark.engines("sqlite")
@pytest.mark.threads("Python refuses them")
def test_settings_without_a_sensible_value_are_refused(service: QueueService) -> None:
    """The text names the setting, and no queue is made."""
    for given in REFUSED:
        try:
            service.create_queue("jobs", **given)
        except ARGUMENT_ERRORS as error:
            assert next(iter(given)) in str(error)  # noqa: PT017
        else:
            pytest.fail(f"accepted: {given}")
    assert [] == service.queues()
