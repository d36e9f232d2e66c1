"""Tasks of taskiq in a queue: what becomes of them, and workers that are killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from taskiq import BrokerMessage, SendTaskError, TaskiqMessage
from taskiq.receiver import Receiver

from queue_over_sql import (
    AsyncMessage,
    AsyncQueue,
    AsyncQueueService,
    DatabaseRefused,
    DatabaseUnavailable,
    QueueService,
)
from queue_over_sql.contrib.taskiq import QueueBroker
from tests.contrib.programs import Programs
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from queue_over_sql.testing.plugin import TestDatabase

TASKS, KILLS = 120, 3


def plain(url: str) -> str:
    """The URL without its driver, so that the broker takes an asynchronous one."""
    engine, _, rest = url.partition("://")
    return f"{engine.partition('+')[0]}://{rest}"


async def work(broker: QueueBroker, until: Callable[[], Coroutine[None, None, bool]]) -> None:
    """Let a worker of taskiq receive tasks until something is true."""
    ended = asyncio.Event()
    working = asyncio.create_task(Receiver(broker, max_async_tasks=1).listen(ended))
    async with asyncio.timeout(60):
        while not await until():  # noqa: ASYNC110 - the database has no event for it
            await asyncio.sleep(0.01)
        ended.set()
        await working


@pytest.mark.engines("sqlite")
def test_a_task_is_run_once_and_what_cannot_run_is_kept(database: TestDatabase) -> None:
    """By priority, the oldest first; what taskiq would ack unread is a dead letter or waits."""
    url = plain(database.url)
    ran: list[int] = []

    async def main() -> None:
        broker = QueueBroker(url, "tasks", priorities=3, max_attempts=1, archive="all")

        @broker.task("note", priority=1)
        async def note(number: int) -> None:
            ran.append(number)
            if number == 3:
                raise ValueError(number)

        with pytest.raises(SendTaskError) as refused:
            await note.kiq(0)
        assert "not started" in str(refused.value.__cause__)
        await broker.startup()
        await note.kiq(1)
        await note.kicker().with_labels(priority=0).kiq(2)
        await note.kiq(3)
        await note.kicker().with_labels(delay=3600).kiq(4)
        lost = TaskiqMessage(task_id="5", task_name="lost", labels={}, args=[], kwargs={})
        await broker.kick(broker.formatter.dumps(lost))
        await broker.kick(BrokerMessage(task_id="6", task_name="x", message=b"\x00", labels={}))

        async with AsyncQueueService(url) as service:
            archive = (await service.queue("tasks")).archive

            async def is_done() -> bool:
                return await archive.messages().count() == 5

            await work(broker, is_done)
        await broker.shutdown()

    asyncio.run(main())
    assert [2, 1, 3] == ran
    with QueueService(url) as service:
        archived = service.queue("tasks").archive.messages().list()
        ended = {each.headers["task_id"]: (each.outcome, each.last_error) for each in archived}
        waiting = service.queue("tasks").messages().list()
    assert ("failed", "no task is called 'lost' here") == ended.pop("5")
    outcome, reason = ended.pop("6")
    assert "rejected" == outcome
    assert "no task of taskiq" in str(reason)
    assert {("done", None)} == set(ended.values())
    assert [True] == [each.scheduled_at > each.published_at for each in waiting]


@pytest.mark.engines("sqlite")
def test_a_worker_outlives_an_outage(
    database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker starts at a second try, and no claim or ack that fails ends a worker.

    Nor does one that is refused, as on a full disk.
    """
    url = plain(database.url)
    monkeypatch.setattr("queue_over_sql.contrib.taskiq.broker._PAUSE", 0.01)
    failing = {AsyncQueueService: "create_queue", AsyncQueue: "consume", AsyncMessage: "ack"}
    away = {"create_queue": 1, "consume": 2, "ack": 2}
    for owner, name in failing.items():
        monkeypatch.setattr(owner, name, _away_at_first(getattr(owner, name), away, name))
    ran: list[int] = []

    async def main() -> None:
        broker = QueueBroker(url, "tasks", archive="all")

        @broker.task("note")
        async def note(number: int) -> None:
            ran.append(number)

        with pytest.raises(DatabaseUnavailable):
            await broker.startup()
        await broker.startup()
        await note.kiq(1)
        async with AsyncQueueService(url) as service:
            archive = (await service.queue("tasks")).archive

            async def is_done() -> bool:
                return await archive.messages().count() == 1

            await work(broker, is_done)
        await broker.shutdown()

    asyncio.run(main())
    assert [1] == ran
    assert {0} == set(away.values())


def _away_at_first(verb: Any, away: dict[str, int], name: str) -> Any:
    async def tried(*arguments: Any, **options: Any) -> Any:
        if away[name]:
            away[name] -= 1
            raise DatabaseRefused("full") if away[name] else DatabaseUnavailable("away")
        return await verb(*arguments, **options)

    return tried


@pytest.mark.chaos
@pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.default_on("postgresql")
def test_tasks_of_workers_that_are_killed_run_again(database: TestDatabase, tmp_path: Path) -> None:
    """``taskiq worker`` is killed three times amid 120 tasks: none is lost, few run twice."""
    file = tmp_path / "ran"
    programs = Programs(tmp_path, COUNTING_URL=plain(database.url), COUNTING_FILE=str(file))
    program = "tests.contrib.taskiq.counting"
    send = (
        "import asyncio\n"
        f"from {program} import broker, count\n"
        "async def main():\n"
        "    await broker.startup()\n"
        f"    [await count.kiq(number) for number in range({TASKS})]\n"
        "    await broker.shutdown()\n"
        "asyncio.run(main())"
    )
    programs.run("-c", send)

    def ran() -> list[str]:
        return file.read_text().splitlines() if file.exists() else []

    work = (
        *("-m", "taskiq", "worker", f"{program}:broker"),
        *("--workers", "1", "--max-async-tasks", "4"),
    )
    for kill in range(1, KILLS + 1):
        with programs.started(*work):
            wait_until(lambda kill=kill: len(ran()) >= 20 * kill, timeout=60)  # type: ignore[misc]
    with programs.started(*work):
        wait_until(lambda: len(set(ran())) == TASKS, timeout=60)
    assert {str(number) for number in range(TASKS)} == set(ran())
    assert len(ran()) <= TASKS + 4 * KILLS
