"""Groups of a queue that has lived: each statement reads by its index, whatever waits.

The table holds a group of 5,000 messages of which one is in hand and the others are parked, 1,000
groups of five messages, and the dead rows of 2,000 finished ones.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from queue_over_sql import Publication, QueueService
from queue_over_sql.claiming.operations import claiming_of_groups
from queue_over_sql.groups import operations, repair
from queue_over_sql.groups.fair import claims_of
from queue_over_sql.groups.strategy import GroupRules
from queue_over_sql.queue import core_of
from queue_over_sql.sql.operation import Operation
from queue_over_sql.sql_listing import statements_of
from tests.dialects.plans.explain import analyze, plans
from tests.dialects.plans.sql_files import as_tokens, is_ours, pattern_of
from tests.dialects.traffic import listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlalchemy import Connection

    from queue_over_sql import Message, Queue
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb", "h2")
DEEP, GROUPS, EACH, DONE = 5_000, 1_000, 5, 2_000
INDEXES = {
    *("jobs.id", "jobs.claim", "jobs.group", "jobs.held", "other.group"),
    *("jobs_groups.id", "jobs_groups.key"),
}
"""What may be read; ``other`` is the queue's table, in statements that read it twice."""
SELECTED = {"jobs.id", "jobs.group", "jobs.held", "jobs.lease", "jobs.lease*"}
"""What a selection by group may read: its messages, and of all the others those in hand."""


def life() -> Iterator[Publication]:
    """The messages in the order in which they are published."""
    for number in range(DONE):
        yield Publication(number, group=f"group {number % GROUPS}")
    for number in range(DEEP):
        yield Publication(number, group="deep")
    for number in range(GROUPS * EACH):
        yield Publication(number, group=f"group {number % GROUPS}")


def _claim(queue: Queue, count: int) -> Callable[[], object]:
    queue.consume(count)
    return lambda: queue.consume(count)


def _know(queue: Queue) -> Callable[[], object]:
    context = core_of(queue).context
    return lambda: context.run(lambda c: operations.know(c, context.sql, ["new", "deep"]))


def _park(queue: Queue) -> Callable[[], object]:
    """What a claim meets of groups that are in hand."""
    held = queue.consume(100)
    queue.publish_many([Publication(0, group=message.group) for message in held])
    core = core_of(queue)
    context = core.context
    request = core.claimer._group_request(0, 1_000, None, None)._replace(window=1_000)
    _, found = context.run(claiming_of_groups(context.sql, request))
    claims = claims_of(context.sql, request.rules)

    def park(connection: Connection) -> object:
        return operations.park(connection, context.sql, claims, request, found.seen)

    return lambda: context.run(Operation(park, atomic=True))


def _end(queue: Queue, verb: str = "ack") -> Callable[[], object]:
    """Ten messages in hand, behind each of which the rest of its group is parked."""
    held = queue.consume(10)
    live = queue.table
    with core_of(queue).context.connections.engine.begin() as connection:
        ours = live.c.group_key.in_([message.group for message in held])
        carriers = live.c.id.in_([message.id for message in held])
        connection.execute(update(live).where(carriers).values(blocks=1))
        waiting = update(live).where(ours, live.c.consumer_id.is_(None))
        connection.execute(waiting.values(parked_at=live.c.available_at))
        connection.execute(waiting.values(available_at=None))
    arguments = ("no",) if verb == "reject" else ()
    return lambda: getattr(queue, verb)(held, *arguments)


def _repair(queue: Queue) -> Callable[[], object]:
    sql, context = core_of(queue).context.sql, core_of(queue).context

    def look() -> None:
        rules = GroupRules.of(context.settings)
        context.run(lambda c: repair.find_broken(c, sql, rules, 0, 100_000))
        context.run(repair.repair.of(sql, rules, ["deep", "group 1"]))
        context.run(repair.remove_idle.of(sql, "", 500, 0))

    return look


SELECTIONS: Mapping[str, Callable[[Queue], object]] = {
    "list": lambda queue: queue.messages(group="deep").list(limit=10),
    "next page": lambda queue: queue.messages(group="deep").list(limit=10, after=DONE + 50),
    "newest": lambda queue: queue.messages(group="deep").list(limit=10, newest_first=True),
    "list by status": lambda queue: queue.messages(group="group 7", status="ready").list(),
    "list what is claimed": lambda queue: queue.messages(group="deep", status="claimed").list(),
    "none": lambda queue: queue.messages(group="no such").list(),
    "count": lambda queue: queue.messages(group="group 8").count(),
}


ACTS: Mapping[str, Callable[[Queue], Callable[[], object]]] = {
    "claim 1": lambda queue: _claim(queue, 1),
    "claim 100": lambda queue: _claim(queue, 100),
    "create rows": _know,
    "park": _park,
    "end a carrier": _end,
    "end a carrier in the archive": lambda queue: _end(queue, "reject"),
    "give back": lambda queue: _end(queue, "release"),
    "repair": _repair,
}


@pytest.mark.timeout(300)
def test_acts_on_groups_read_by_their_indexes(database: TestDatabase) -> None:
    """Neither the depth of a group nor the number of groups is read, and nothing is sorted."""
    quiet: dict[str, Any] = {"consumer_timeout": 3600, "reaper_interval": 3600}
    with listening(database.engine) as traffic, contextlib.ExitStack() as stack:
        service = QueueService(database.url, **quiet)
        stack.callback(service.stop)
        queue = service.create_queue("jobs", lease=86_400, group_limit=1)
        queue.load(life())
        left = DONE
        while left:
            done = queue.consume(500)
            queue.ack(done)
            left -= len(done)
        [deep] = queue.consume(1)
        assert "deep" == deep.group
        assert 100 == len(queue.consume(100))
        connect = service._parts.connections.engine.connect
        with connect() as connection:
            analyze(connection, database.engine, "queue_jobs", "queue_jobs_groups")
        wrong = []
        # PostgreSQL knows how few rows of groups there are, and reads all of them.
        acts = {} if database.engine == "postgresql" else ACTS
        for name, prepare in acts.items():
            sent = traffic.of(prepare(queue))
            with connect() as connection:
                for plan in plans(connection, database.engine, sent):
                    read = {each for each in plan.reads if each.startswith(("jobs", "other"))}
                    # Of hundreds of groups at once, all that is in hand may be the shorter way.
                    read -= {"jobs.lease"} if name == "park" else set()
                    if plan.sorts or not read <= INDEXES:
                        wrong.append(f"{name}: {plan}")
        for name, select in SELECTIONS.items():
            sent = traffic.of(lambda: select(queue))  # noqa: B023 - runs at once
            with connect() as connection:
                wrong += [
                    f"{name}: {plan}"
                    for plan in plans(connection, database.engine, sent)
                    if not {each for each in plan.reads if each.startswith("jobs")} <= SELECTED
                ]
        assert not wrong, "\n\n".join(wrong)


@pytest.mark.engines("postgresql")
@pytest.mark.timeout(120)
def test_a_claim_reads_what_its_groups_have_in_hand(database: TestDatabase) -> None:
    """Also if little was in hand when the server counted: each group read all that was."""
    names = [f"group {number}" for number in range(DEEP)]
    with listening(database.engine) as traffic, contextlib.ExitStack() as stack:
        service = QueueService(database.url, consumer_timeout=3600, reaper_interval=3600)
        stack.callback(service.stop)
        queue = service.create_queue("jobs", lease=86_400, group_limit=1)
        connect = service._parts.connections.engine.connect
        queue.load(Publication(number, group=name) for number, name in enumerate(names))
        held = [message for _ in range(DEEP // 500) for message in queue.consume(500)]
        held.sort(key=lambda message: str(message.group))
        queue.ack(held[1:-1])
        busy = {held[0].group, held[-1].group}
        queue.load(Publication(0, group=name) for name in names if name not in busy)
        alone = connect().execution_options(isolation_level="AUTOCOMMIT")
        with alone as connection:
            connection.exec_driver_sql("VACUUM ANALYZE queue_jobs").close()
            # As after claims of many others: no index is enough without the table.
            seen = "UPDATE pg_class SET relallvisible = 0 WHERE relname = 'queue_jobs'"
            connection.exec_driver_sql(seen).close()
        wrong = []
        for count in (500, 20, 20):
            sent = traffic.of(lambda: queue.consume(count))  # noqa: B023 - runs at once
            with connect() as connection:
                found = list(plans(connection, database.engine, sent))
            assert any("jobs.held" in plan.reads for plan in found), sent
            wrong += [str(plan) for plan in found if "jobs.lease*" in plan.reads]
        assert not wrong, "\n\n".join(wrong)


RULES: Mapping[str, dict[str, Any]] = {
    "fifo": {"group_limit": 1},
    "any": {"group_limit": 2, "group_order": "any"},
    "rated": {"group_limit": 1, "group_rate": "50/s"},
    "fair": {"group_fair": True},
    "limited": {"queue_limit": 10},
}


@pytest.mark.timeout(300)
def test_the_listing_shows_how_rules_are_kept(database: TestDatabase) -> None:
    """A claim, an ack and a take begin as ``queue-over-sql sql`` shows them, by one and by two."""
    quiet: dict[str, Any] = {"consumer_timeout": 3600, "reaper_interval": 3600}
    with listening(database.engine) as traffic, contextlib.ExitStack() as stack:
        service = QueueService(database.url, **quiet)
        stack.callback(service.stop)
        connections = service._parts.connections
        wrong = []
        for rules, settings in RULES.items():
            queue = service.create_queue(rules, **settings)
            listed: dict[str, str] = {}
            for each in statements_of(queue):
                listed.setdefault(each.operation, each.text)
            queue.consume()
            for count in (1, 2):
                names = [f"{count} {n}" for n in range(count)] if rules != "limited" else [None] * 2
                several = "" if count == 1 else ", batch"
                items = [Publication(n, group=name) for n, name in enumerate(names[:count])]
                queue.publish_many(items)
                found: list[Message] = []
                acts: dict[str, Callable[[], object]] = {
                    "claim": lambda: found.extend(queue.consume(count)),  # noqa: B023 - runs at once
                    "ack": lambda: queue.ack(found),  # noqa: B023
                }
                for name, act in acts.items():
                    sent = [as_tokens(each.text) for each in traffic.of(act) if is_ours(each)]
                    ways = [f"{name}{several}"]
                    if name == "claim":
                        ways.append("groups, claim first messages")
                    patterns = [pattern_of(listed[way]) for way in ways if way in listed]
                    if not any(each.fullmatch(text) for each in patterns for text in sent):
                        wrong.append(f"{rules}, {name} {count}: {sent}")
                assert count == len(found)
            queue.publish(1)

            def take() -> None:
                with connections.transaction() as connection:
                    assert queue.take(connection=connection)  # noqa: B023

            sent = [as_tokens(each.text) for each in traffic.of(take) if is_ours(each)]
            pattern = pattern_of(listed["take"])
            if not any(pattern.fullmatch(text) for text in sent):
                wrong.append(f"{rules}, take: {pattern.pattern}\n{sent}")
        assert not wrong, "\n\n".join(wrong)
