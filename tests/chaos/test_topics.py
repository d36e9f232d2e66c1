"""`kill -9` of publishers to a topic: each message has all copies, or none."""

from __future__ import annotations

import signal
import time
from functools import partial

import pytest
from sqlalchemy import Engine

from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import live_tokens, repeated
from tests.chaos.processes import Crew
from tests.chaos.roles import fanner, puppet
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

QUEUES = ("a", "b", "c", "d", "e")
each_way = pytest.mark.parametrize("within", [False, True], ids=["own", "within"])


def prepared(make_service: MakeService) -> None:
    """A topic with five queues."""
    service = make_service()
    topic = service.create_topic("events")
    for name in QUEUES:
        topic.subscribe(service.create_queue(name))


def check_copies(crew: Crew, sql: Engine) -> set[str]:
    """Each message is in all queues once or in none; what was committed is there; what is there.

    What was published in one transaction is there together.
    """
    account = crew.account()
    present = set(live_tokens(sql, QUEUES[0]))
    for name in QUEUES:
        tokens = live_tokens(sql, name)
        assert [] == repeated(tokens)
        assert present == set(tokens)
    assert set() == set(account.tokens("published")) - present
    assert set() == present - set(account.tokens("intends"))
    for batch in account.batches("intends"):
        assert batch & present in (set(), batch)
    return present


@pytest.mark.default_on("sqlite", "postgresql")
@each_way
def test_a_publisher_that_dies_between_two_copies_leaves_none(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew, *, within: bool
) -> None:
    """After each of the five copies, the last one right before the commit."""
    prepared(make_service)
    victims = []
    for copies in range(1, len(QUEUES) + 1):
        name = f"dies-after-{copies}"
        arguments = fanner.Arguments(
            database.url, str(crew.journals), name, within=within, fatal_copy=copies
        )
        victim = crew.spawn(arguments)
        assert -signal.SIGKILL == victim.join(), victim.errors()
        victims.append(name)

    def gone() -> bool:
        # A server may notice only after a moment that a client is gone.
        counts = {len(live_tokens(sql, name)) for name in QUEUES}
        return len(counts) == 1

    eventually(gone, "what the dead had begun is rolled back")
    present = check_copies(crew, sql)
    size = fanner.OWN_TRANSACTION if within else 1
    assert {f"{name}-{number}" for name in victims for number in range(size)} == present
    topic = make_service().topic("events")
    assert [*QUEUES] == [one.queue for one in topic.publish({"token": "later"}, routing_key="x")]


def has_published(crew: Crew, name: str) -> bool:
    """Whether this publisher has reported several publishes as committed."""
    return (crew.journals / f"{name}.jsonl").read_text().count('"published"') > 20


@pytest.mark.default_on("sqlite", "postgresql")
@pytest.mark.parametrize(
    "within", [False, pytest.param(True, marks=pytest.mark.full)], ids=["own", "within"]
)
def test_publishers_killed_at_any_moment_leave_whole_fan_outs(
    make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew, *, within: bool
) -> None:
    """Several, side by side, killed one after another while the others go on."""
    prepared(make_service)
    names = [f"publisher-{number}" for number in range(4)]
    publishers = [
        crew.spawn(fanner.Arguments(database.url, str(crew.journals), name, within=within))
        for name in names
    ]
    for process in publishers:
        process.expect("ready")
        process.tell("go")
    for number, (process, name) in enumerate(zip(publishers, names, strict=True)):
        eventually(partial(has_published, crew, name), f"{name} has published", within=60)
        time.sleep(0.05 + number * 0.013)  # somewhere within a later publish
        process.kill()

    def settled() -> bool:
        return len({len(live_tokens(sql, name)) for name in QUEUES}) == 1

    eventually(settled, "what the dead had begun is rolled back")
    assert check_copies(crew, sql)


@pytest.mark.default_on("sqlite", "postgresql")
def test_a_killed_subscriber_leaves_no_queue_that_grows(
    make_service: MakeService, database: TestDatabase, crew: Crew
) -> None:
    """Its temporary queue goes with its subscription; that of a living one gets each message."""
    with make_service(reaper_interval=0.2, consumer_timeout=5.0) as service:
        topic = service.create_topic("events")
        service.create_queue("jobs")
        puppets = {}
        for name in ("box_victim", "box_living"):
            timeout = 5.0 if name == "box_victim" else 60.0
            arguments = puppet.Arguments(
                database.url, consumer_timeout=timeout, reaper_interval=3600.0
            )
            puppets[name] = child = crew.spawn(arguments)
            child.expect("ready")
            child.ask("subscribe", queue=name, topic="events")
        sent = [one.queue for one in topic.publish("x", routing_key="all")]
        assert ["box_living", "box_victim"] == sent
        puppets["box_victim"].kill()
        left = partial(service.queues, temporary=True)
        eventually(lambda: "box_victim" not in {queue.name for queue in left()}, "it is dropped")
        assert ["box_living"] == [one.queue for one in topic.publish("y", routing_key="all")]
        assert 2 == service.queue("box_living").messages().count()
