"""`kill -9` of requesters and repliers: no request is lost, and none is answered twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from queue_over_sql import ReplyQueueGone
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import create_effects, effects
from tests.chaos.processes import Crew, Process
from tests.chaos.roles import replier, requester
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


def done(asking: Process) -> dict[str, int]:
    """What came of the requests of a process, once it has ended."""
    outcomes: dict[str, int] = asking.expect("done", within=120.0)["outcomes"]
    assert 0 == asking.join()
    return outcomes


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_requester_killed_before_its_reply(
    make_service: MakeService, database: TestDatabase, crew: Crew
) -> None:
    """Its queue is dropped, the replier is told, and its requests are not lost."""
    with make_service(reaper_interval=0.2) as service:
        queue = service.create_queue("jobs")
        asking = crew.spawn(
            requester.Arguments(database.url, "victim", threads=2, consumer_timeout=5.0)
        )
        asking.expect("ready")
        asking.tell("go")
        eventually(lambda: queue.messages().count() == 2, "two requests")
        [message] = queue.consume()
        asking.kill()

        eventually(lambda: len(service.queues(temporary=True)) == 1, "the dead one's is dropped")
        with pytest.raises(ReplyQueueGone) as told:
            message.reply("too late")
        assert message.reply_to == told.value.queue
        message.ack()
        [other] = queue.consume()
        assert {"victim-0-0", "victim-1-0"} == {m.payload["token"] for m in (message, other)}
        other.ack()


@pytest.mark.full
def test_many_requesters_and_several_repliers(
    make_service: MakeService, database: TestDatabase, crew: Crew
) -> None:
    """Each request gets its own reply, and nothing temporary is left."""
    service = make_service()
    queue = service.create_queue("jobs")
    repliers = [crew.spawn(replier.Arguments(database.url)) for _ in range(2)]
    asking = [
        crew.spawn(requester.Arguments(database.url, f"r{n}", threads=4, requests=10))
        for n in range(2)
    ]
    for process in [*repliers, *asking]:
        process.expect("ready")
    for process in asking:
        process.tell("go")
    assert [{"own": 40}] * 2 == [done(process) for process in asking]
    assert 0 == queue.messages().count()
    assert ["jobs"] == [one.name for one in service.queues(temporary=True)]


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_replier_killed_between_its_reply_and_its_ack(
    make_service: MakeService, database: TestDatabase, crew: Crew, tmp_path: Path
) -> None:
    """The request is delivered again and done, and who asked has one reply."""
    queue = make_service().create_queue("jobs")
    flag = tmp_path / "dead"
    repliers = [
        crew.spawn(replier.Arguments(database.url, deadly_once=str(flag))) for _ in range(2)
    ]
    asking = crew.spawn(requester.Arguments(database.url, "r", threads=2, requests=5))
    for process in [*repliers, asking]:
        process.expect("ready")
    asking.tell("go")
    assert {"own": 10} == done(asking)
    assert flag.exists()
    eventually(lambda: queue.messages().count() == 0, "the redelivered request is done")
    assert 0 == queue.archive.messages().count()
    assert 1 == sum(process.alive for process in repliers)


@pytest.mark.full
def test_repliers_killed_again_and_again(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """Effect, reply and ack are one: each request is done once and answered once."""
    create_effects(sql)
    service = make_service()
    queue = service.create_queue("jobs", max_attempts=50)
    arguments = replier.Arguments(database.url, transactional=True)
    repliers = [crew.spawn(arguments) for _ in range(2)]
    asking = [
        crew.spawn(requester.Arguments(database.url, f"r{n}", threads=3, requests=15))
        for n in range(2)
    ]
    for process in [*repliers, *asking]:
        process.expect("ready")
    for process in asking:
        process.tell("go")
    for enough in (10, 30, 50):
        eventually(lambda: len(effects(sql)) >= enough, "work goes on", within=60.0)  # noqa: B023
        repliers.pop(0).kill()
        repliers.append(crew.spawn(arguments))
        repliers[-1].expect("ready")
    assert [{"own": 45}] * 2 == [done(process) for process in asking]
    tokens = [f"r{n}-{t}-{i}" for n in range(2) for t in range(3) for i in range(15)]
    assert sorted(tokens) == sorted(token for token, _ in effects(sql))
    assert 0 == queue.messages().count()
    assert ["jobs"] == [one.name for one in service.queues(temporary=True)]
