"""Changing, pausing and removing schedules: future messages are removed, due ones stay."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql import QueueNotFound, QueueSchemaMismatch, ScheduleNotFound, Status
from queue_over_sql.schedules import operations, store
from queue_over_sql.schedules.firing import ScheduleAccess
from queue_over_sql.statements.parameters import batches
from tests.contract.queue_state import payloads
from tests.contract.schedules.schedule_times import (
    HOUR,
    everything,
    grid,
    hourly,
    instants,
    let_pass,
    next_of,
    now,
    on_grid,
    silence,
    stored,
)
from tests.waiting import consume_exactly, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from queue_over_sql import Message, Queue, QueueService
    from queue_over_sql.testing.plugin import MakeService

    Change = Callable[[QueueService], object]

SECOND = timedelta(seconds=1)
CHANGES: dict[str, Change] = {
    "changed": lambda service: service.schedules.add("s", "jobs", "new", cron="0 0 29 2 *"),
    "moved": lambda service: service.schedules.add("s", "others", "new", cron="0 0 29 2 *"),
    "paused": lambda service: service.schedules.pause("s"),
    "removed": lambda service: service.schedules.remove("s"),
}


@pytest.fixture
def others(service: QueueService) -> Queue:
    """A second queue."""
    return service.create_queue("others")


def olds(queue: Queue) -> list[Any]:
    """The payloads in a queue that are not those of a changed schedule."""
    return [payload for payload in payloads(everything(queue)) if payload != "new"]


def to_come(queue: Queue) -> list[Any]:
    """Those of ``olds`` for times that have not passed; each waits for an hour after its time."""
    return [m.id for m in everything(queue) if m.payload != "new" and m.scheduled_at > now() + HOUR]


# ---------------------------------------------------------------- what goes along


def test_passed_times_keep_their_messages(service: QueueService, queue: Queue) -> None:
    """A message that waits because of a delay changes along; the change is not its end."""
    every: dict[str, Any] = {"every": timedelta(hours=1), "delay": HOUR}
    service.schedules.add("s", queue, "old", **every)
    extra = service.schedules.run("s")
    ran = queue.messages(where=queue.table.c.id == extra.id).list()[0]
    service.schedules.add("s", queue, "new", **every)
    [message] = queue.messages(key=ran.key).list()
    assert "new" == message.payload
    assert ran.scheduled_at == message.scheduled_at
    assert ["new", "new"] == payloads(everything(queue))


@pytest.mark.engines("postgresql", "mariadb")
@pytest.mark.threads("what happens in the middle of the change blocks")
def test_a_passed_time_that_is_handled_meanwhile_comes_once(
    make_service: MakeService, queue: Queue, others: Queue, engine: Engine, monkeypatch: Any
) -> None:
    """Its message becomes due while the schedule changes, and is acked or claimed."""
    service, elsewhere = make_service(), make_service().queue("jobs")
    every: dict[str, Any] = {"every": HOUR, "delay": HOUR}
    service.schedules.add("s", queue, "old", **every)
    ran = [service.schedules.run("s").id for _ in range(2)]
    taken: list[Message] = []

    def be_late(ids: Any) -> Any:
        monkeypatch.setattr(store, "batches", batches)
        let_pass(engine, queue, 3600)
        taken.extend(consume_exactly(elsewhere, 2))
        taken[0].ack()
        return batches(ids)

    monkeypatch.setattr(store, "batches", be_late)
    service.schedules.add("s", others, "new", **every)
    assert ran == [message.id for message in taken]
    assert 1 == len(everything(others))
    assert 1 == len([m for m in everything(queue) if m.id in ran])


@pytest.mark.parametrize("end", ["paused", "removed"])
def test_passed_times_keep_their_messages_at_the_end(
    service: QueueService, queue: Queue, end: str
) -> None:
    """A message of a passed time is published, even while it waits for its delay."""
    service.schedules.add("s", queue, "old", every=HOUR, delay=HOUR)
    ran, held = service.schedules.run("s"), service.schedules.run("s")
    assert 1 == queue.messages(where=queue.table.c.id == held.id).hold()
    assert 3 == len(everything(queue))
    CHANGES[end](service)
    assert {ran.id, held.id} == {message.id for message in everything(queue)}


@pytest.mark.usefixtures("others")
def test_future_messages_go_along(service: QueueService, queue: Queue) -> None:
    """None of a time to come stays, held or not, and no pass brings one back."""
    for name, change in CHANGES.items():
        service.schedules.add("s", "jobs", "old", every=60, delay=HOUR)
        service.schedules.add("s", "jobs", "old", every=1, delay=HOUR)
        assert len(olds(queue)) in {5, 6}
        latest = everything(queue)[-1]
        assert 1 == queue.messages(where=queue.table.c.id == latest.id).hold()
        change(service)
        assert [] == to_come(queue), name
        service.reap()
        assert [] == to_come(queue), name
        service.schedules.remove("s")
        queue.purge()


def test_a_hold_outlives_a_deployment(service: QueueService, queue: Queue, others: Queue) -> None:
    """What an operator holds stays while the schedule has its time, and nothing doubles it."""
    added = service.schedules.add("s", queue, "old", every=HOUR)
    queue.messages().hold()
    for _ in range(2):
        service.schedules.add("s", queue, "new", every=HOUR)
        service.reap()
        [held] = everything(queue)
        assert ("old", Status.HELD, next_of(added)) == (
            held.payload,
            held.status,
            held.scheduled_at,
        )
    service.schedules.add("s", queue, "new", every=HOUR / 3)
    assert ["new"] == payloads(everything(queue))
    queue.messages().hold()
    service.schedules.add("s", others, "new", every=HOUR / 3)
    assert [] == everything(queue)


@pytest.mark.usefixtures("others")
def test_due_and_claimed_messages_stay(service: QueueService, queue: Queue, engine: Engine) -> None:
    """What somebody works on, what is due, and what failed and waits is left as it is."""
    for name, change in CHANGES.items():
        service.schedules.add("s", "jobs", "old", every=1, delay=HOUR)
        let_pass(engine, queue, 3600 + 60)
        waiting, claimed, _ = consume_exactly(queue, 3)
        waiting.nack("later", delay=600)
        count = len(olds(queue))
        change(service)
        assert count == len(olds(queue)), name
        claimed.ack()
        service.schedules.remove("s")
        queue.purge(claimed=True)


@pytest.mark.usefixtures("others")
def test_only_messages_of_this_schedule_go_along(service: QueueService, queue: Queue) -> None:
    """Not those of schedules whose names look alike, nor others with keys that do."""
    alike = ["S", "s ", "s:s", "_", "%", "s:2026-01-01T00:00:00", "s%", "ss"]
    for name in alike:
        service.schedules.add(name, "jobs", name, cron=hourly())
    queue.publish("plain", delay=60)
    queue.publish("keyed", key="schedule:s:mine", delay=60)
    service.schedules.add("s", "jobs", "old", cron=hourly())
    service.schedules.remove("s")
    assert {*alike, "plain", "keyed"} == set(olds(queue))
    for name in alike:
        service.schedules.remove(name)
    assert ["keyed", "plain"] == sorted(olds(queue))


def test_any_name_finds_its_messages(service: QueueService, queue: Queue) -> None:
    """Also one of characters that take two places in some engines, or that LIKE reads otherwise."""
    for name in ["\N{PARTY POPPER}", "100%_!/\\", "e\N{COMBINING ACUTE ACCENT}", "x" * 150]:
        service.schedules.add(name, queue, 1, cron=hourly())
        service.schedules.pause(name)
        assert [] == everything(queue), name


@pytest.mark.default_on("sqlite", "postgresql")
def test_no_reaper_publishes_after_the_end(make_service: MakeService, queue: Queue) -> None:
    """Reapers that race with the removal leave no message of the future behind."""
    services = [make_service(reaper_interval=0.05) for _ in range(3)]
    for service in services:
        service.start()
    for _ in range(5):
        services[0].schedules.add("s", queue, 1, every=0.1)
        wait_until(lambda: queue.stats().ready > 2, timeout=20)
        assert services[0].schedules.remove("s")
        queue.purge()
        for service in services:
            service.reap()
        assert [] == everything(queue)


# ---------------------------------------------------------------- adding again


def test_an_equal_schedule_changes_nothing(
    service: QueueService, make_service: MakeService, queue: Queue, engine: Engine
) -> None:
    """A server that boots later with the same code leaves the row and the messages alone."""
    added = service.schedules.add("s", queue, {"a": 1}, every=1.5, delay=60, headers={"h": 1})
    before, messages = stored(engine, "s"), [one.id for one in everything(queue)]
    options: dict[str, Any] = {
        "delay": timedelta(minutes=1),
        "headers": {"h": 1},
        "priority": 0,
        "kind": None,
    }
    make_service().schedules.add("s", "jobs", {"a": 1}, every=timedelta(seconds=1.5), **options)
    assert before == stored(engine, "s")
    assert messages == [one.id for one in everything(queue)]
    assert added.created_at == service.schedules.get("s").created_at


@pytest.mark.default_on("sqlite", "postgresql")
def test_twenty_servers_add_at_once(make_service: MakeService, queue: Queue) -> None:
    """All get through, and there is one schedule with its messages."""
    services = [make_service() for _ in range(20)]
    with ThreadPoolExecutor(20) as threads:
        added = list(
            threads.map(lambda one: one.schedules.add("s", "jobs", 1, every=1, delay=60), services)
        )
    assert 1 == len({schedule.created_at for schedule in added})
    found = instants(everything(queue))
    assert len(found) in {5, 6}
    assert on_grid(found, SECOND)


def test_servers_that_disagree_leave_one_of_their_schedules(
    make_service: MakeService, queue: Queue, others: Queue
) -> None:
    """Different definitions at once: the last one stands, with its messages alone."""
    services = [make_service() for _ in range(8)]

    def add(number: int) -> None:
        name = ("jobs", "others")[number % 2]
        services[number].schedules.add("s", name, number, cron=hourly())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(8)))
    final = services[0].schedules.get("s")
    [message] = everything(queue) + everything(others)
    assert final.queue == message.queue
    assert final.payload == message.payload


@pytest.mark.engines("sqlite")
def test_a_changed_schedule_has_new_messages(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """Its payload, its time and its queue may change; it keeps the day on which it was added."""
    first = service.schedules.add("s", queue, "old", cron=hourly())
    changed = service.schedules.add("s", queue, "new", cron=hourly(), timezone="Asia/Kolkata")
    assert first.created_at == changed.created_at
    (message,) = everything(queue)
    assert "new" == message.payload
    assert next_of(changed) == message.scheduled_at
    assert HOUR / 2 == (next_of(first) - next_of(changed)) % HOUR
    assert 1 == stored(engine, "s").revision


@pytest.mark.engines("sqlite")
def test_what_comes_every_so_often_keeps_its_time(service: QueueService, queue: Queue) -> None:
    """Another payload does not put off what comes once a week; another length begins anew."""
    first = service.schedules.add("s", queue, "old", every=HOUR)
    second = service.schedules.add("s", queue, "new", every=HOUR)
    assert next_of(first) == next_of(second)
    third = service.schedules.add("s", queue, "new", every=HOUR / 2)
    assert next_of(second) - HOUR / 2 <= next_of(third) <= now() + HOUR / 2


# ---------------------------------------------------------------- pause and resume


@pytest.mark.engines("sqlite")
def test_a_deployment_keeps_what_was_missed(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """Another payload after a time without servers: what was missed comes, and is the new one."""
    cron = hourly()
    added = service.schedules.add("s", queue, 1, cron=cron, missed="all")
    silence(engine, queue, "s", next_of(added) - 9 * HOUR)
    service.schedules.add("s", queue, 2, cron=cron, missed="all")
    service.reap()
    assert grid(next_of(added) - 9 * HOUR, HOUR, 10) == instants(everything(queue))
    assert {2} == set(payloads(everything(queue)))


def test_a_paused_schedule_publishes_nothing(service: QueueService, queue: Queue) -> None:
    """Until it is resumed, which brings the next message at once; again changes nothing."""
    service.schedules.add("s", queue, 1, cron=hourly(), missed="all")
    for _ in range(2):
        service.schedules.pause("s")
        paused = service.schedules.get("s")
        assert paused.paused
        assert paused.next_at is None
        assert 0 == service.reap().scheduled
        assert [] == everything(queue)
    for _ in range(2):
        service.schedules.resume("s")
        resumed = service.schedules.get("s")
        assert resumed.paused is False
        assert [next_of(resumed)] == instants(everything(queue))


@pytest.mark.engines("sqlite")
def test_what_a_pause_left_out_is_not_missed(service: QueueService, queue: Queue) -> None:
    """After the pause it goes on with the next instant, even where all missed ones are wanted."""
    service.schedules.add("s", queue, 1, every=0.1, missed="all", delay=HOUR)
    service.schedules.pause("s")
    # Whether an instant comes between the two decides how busy the machine is.
    before, paused_at = everything(queue), now()
    wait_until(lambda: now() > paused_at + SECOND / 2, timeout=20)
    assert instants(everything(queue)) == instants(before)
    resumed_at = now()
    service.schedules.resume("s")
    found = instants(everything(queue))[len(before) :]
    assert found[0] > resumed_at + HOUR
    assert on_grid(found, SECOND / 10)


@pytest.mark.engines("sqlite")
def test_a_deployment_does_not_end_a_pause(service: QueueService, queue: Queue) -> None:
    """What an operator has paused stays so when a server adds it anew, changed or not."""
    service.schedules.add("s", queue, 1, cron=hourly())
    service.schedules.pause("s")
    assert service.schedules.add("s", queue, 1, cron=hourly()).paused
    assert service.schedules.add("s", queue, 2, cron=hourly()).paused
    assert [] == everything(queue)
    service.schedules.resume("s")
    assert [2] == payloads(everything(queue))


# ---------------------------------------------------------------- removal, and queues that go


@pytest.mark.engines("sqlite")
def test_a_removed_schedule_is_gone(service: QueueService, queue: Queue) -> None:
    """It may be added again, and then begins anew."""
    service.schedules.add("s", queue, 1, cron=hourly())
    assert service.schedules.remove("s") is True
    assert service.schedules.remove("s") is False
    with pytest.raises(ScheduleNotFound):
        service.schedules.get("s")
    service.schedules.add("s", queue, 1, cron=hourly())
    assert 1 == len(everything(queue))


@pytest.mark.engines("sqlite")
def test_a_schedule_that_was_added_anew_is_fired(
    service: QueueService, queue: Queue, engine: Engine
) -> None:
    """A server does not take it for the one before, for which it had nothing to do for years."""
    service.schedules.add("s", queue, 1, cron="0 0 29 2 *")
    service.reap()
    service.schedules.remove("s")
    added = service.schedules.add("s", queue, 2, every=1)
    silence(engine, queue, "s", added.created_at)
    service.reap()
    assert {2} == set(payloads(everything(queue)))


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.threads("what happens in the middle of the run blocks")
def test_a_schedule_is_replaced_while_it_is_run(
    make_service: MakeService, queue: Queue, others: Queue, monkeypatch: Any
) -> None:
    """Who has read the one before publishes what this one says."""
    service, elsewhere = make_service(), make_service()
    service.schedules.add("s", queue, "old", cron=hourly())
    messages = ScheduleAccess.messages

    def encode_and_be_late(access: ScheduleAccess, record: Any) -> Any:
        monkeypatch.setattr(ScheduleAccess, "messages", messages)
        encoded = messages(access, record)
        elsewhere.schedules.add("s", others, "new", cron=hourly())
        return encoded

    monkeypatch.setattr(ScheduleAccess, "messages", encode_and_be_late)
    service.schedules.run("s")
    assert [] == everything(queue)
    assert ["new"] == payloads(consume_exactly(others, 1))


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.threads("what happens in the middle of the pass blocks")
def test_a_schedule_is_replaced_while_it_is_fired(
    make_service: MakeService, queue: Queue, others: Queue, engine: Engine, monkeypatch: Any
) -> None:
    """A reaper that has read the one before publishes nothing of it, and moves nothing of this."""
    service, elsewhere = make_service(), make_service()
    service.schedules.add("s", queue, "old", cron="0 0 29 2 *")
    silence(engine, queue, "s", now() - HOUR)
    look = operations.look

    def look_and_be_late(messages: Any, record: Any) -> Any:
        monkeypatch.setattr(operations, "look", look)
        elsewhere.schedules.remove("s")
        elsewhere.schedules.add("s", others, "new", every=1)
        return look(messages, record)

    monkeypatch.setattr(operations, "look", look_and_be_late)
    service.reap()
    assert [] == everything(queue)
    assert on_grid(instants(everything(others)), SECOND)
    assert 0 == stored(engine, "s").revision


def test_a_dropped_queue_takes_its_schedules_along(
    service: QueueService, queue: Queue, others: Queue
) -> None:
    """Those of other queues stay; a new queue of that name has none."""
    service.schedules.add("s", queue, 1, cron=hourly())
    service.schedules.add("t", others, 1, cron=hourly())
    service.drop_queue("jobs")
    assert ["t"] == [schedule.name for schedule in service.schedules.list()]
    again = service.create_queue("jobs")
    service.reap()
    assert [] == everything(again)


@pytest.mark.engines("sqlite")
def test_a_queue_that_was_dropped_elsewhere(make_service: MakeService, queue: Queue) -> None:
    """A service that still knows it says that it is not there; its schedules use the new one."""
    service, other = make_service(reaper_interval=0.01), make_service()
    service.schedules.add("s", queue, 1, cron=hourly())
    other.drop_queue("jobs")
    with pytest.raises(QueueNotFound):
        service.schedules.add("s", queue, 1, cron=hourly())
    other.create_queue("jobs", payload="text")
    other.schedules.add("s", "jobs", "x", every=0.1)
    # Settings that others changed are seen after the reaper's interval.
    time.sleep(0.05)
    with suppress(QueueSchemaMismatch):
        service.reap()
    assert {"x"} == set(payloads(everything(other.queue("jobs"))))


def test_a_queue_that_came_again_elsewhere(make_service: MakeService) -> None:
    """Its schedules are changed, run and ended by a service that knows only the earlier queue."""
    service, other = make_service(), make_service()
    other.create_queue("others")
    changes: dict[str, Change] = CHANGES | {"run": lambda service: service.schedules.run("s")}
    for name, change in changes.items():
        again: dict[str, Any] = {"payload": "text"} if name in {"moved", "paused"} else {}
        service.create_queue("jobs", group_limit=1)
        other.drop_queue("jobs")
        queue = other.create_queue("jobs", **again)
        other.schedules.add("s", queue, "old", every=60)
        change(service)
        assert 2 * (name == "run") == len(olds(queue)), name
        other.schedules.remove("s")
        other.drop_queue("jobs")


def test_drops_and_additions_race(make_service: MakeService, queue: Queue) -> None:
    """A schedule never outlives its queue."""
    services = [make_service() for _ in range(4)]
    assert "jobs" == queue.name

    def add(service: QueueService) -> None:
        for number in range(5):
            try:
                service.schedules.add(f"s{number}", "jobs", 1, every=1, delay=60)
            except QueueNotFound:
                return

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(add, service) for service in services[1:]]
        services[0].drop_queue("jobs")
        for one in running:
            one.result()
    assert [] == services[0].schedules.list()
