"""`kill -9` of consumers of a queue with a limit: never more in hand than it allows, none lost."""

from __future__ import annotations

import random

import pytest
from sqlalchemy import Engine

from queue_over_sql import DatabaseUnavailable, FixedDelay
from queue_over_sql.database import repetition
from queue_over_sql.limits import statements
from queue_over_sql.testing.history import Rules
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import archived_count, archived_tokens, live_tokens
from tests.chaos.processes import Crew, Process
from tests.chaos.roles import puppet
from tests.chaos.test_groups import Case, Load
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

LIMIT = 3


@pytest.mark.default_on("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.full)])
def test_a_limit_holds_through_kills(
    kills: int, make_service: MakeService, crew: Crew, database: TestDatabase, sql: Engine
) -> None:
    """Eight consumers claim one by one and in batches; the dead ones' slots come free again.

    A limit that an operator lowers and raises meanwhile holds, too, once what was in hand has
    ended.
    """
    service = make_service()
    service.create_queue(
        "jobs",
        archive="all",
        group_limit=2,
        group_order="any",
        queue_limit=LIMIT,
        max_attempts=10_000,
        retry=FixedDelay(0.05),
        lease=120.0,
    )
    luck = random.Random(7)  # noqa: S311 - chance, not a secret
    load = Load(crew, database.url)
    load.start(Case(1, "any", 0), consumers=8)
    for kill in range(kills):
        load.go_on()
        service.create_queue("jobs", queue_limit=1 + kill % LIMIT)
        load.replace(load.readers, luck)
    service.create_queue("jobs", queue_limit=LIMIT)
    load.go_on()
    for process in load.writers:
        process.tell("stop")
    for process in load.writers:
        process.expect("done")
    published = set(crew.account().tokens("published"))
    eventually(
        lambda: not live_tokens(sql) and archived_count(sql) >= len(published),
        "all messages finished",
        every=0.2,
        progress=lambda: archived_count(sql),
    )
    for process in load.readers:
        process.tell("stop")
    for process in load.readers:
        process.expect("done")

    account = crew.account()
    assert set() == published - set(archived_tokens(sql, "done"))
    rules = Rules(lease=2.5, group_limit=2, group_order="any", queue_limit=LIMIT)
    assert [] == account.check(sql, rules)


def _claiming(crew: Crew, database: TestDatabase) -> Process:
    """A process that has locked the rate, claimed a message, and stays there."""
    claiming = crew.spawn(puppet.Arguments(database.url, rests_in_claims=True))
    claiming.expect("ready")
    claiming.tell("consume", count=1)
    claiming.expect("claiming")
    return claiming


@pytest.mark.default_on("sqlite", "postgresql")
def test_who_dies_in_a_claim_frees_the_rate(
    make_service: MakeService, crew: Crew, database: TestDatabase
) -> None:
    """Its claim has neither happened nor spent a token; the others go on at once."""
    queue = make_service().create_queue("jobs", queue_rate="2/day")
    ids = [queue.publish(number).id for number in range(3)]
    _claiming(crew, database).kill()
    assert ids[:2] == [message.id for message in eventually(lambda: queue.consume(3), "both")]
    assert [] == queue.consume(3)


@pytest.mark.engines("postgresql")
@pytest.mark.default_on("postgresql")
def test_who_is_stopped_in_a_claim_does_not_stop_the_others_for_ever(
    make_service: MakeService,
    crew: Crew,
    database: TestDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their claims raise after a time, as on the other engines; then both go on within the rate."""
    monkeypatch.setattr(repetition, "CONFLICT_SECONDS", 0.2)
    monkeypatch.setattr(statements, "_LONGEST_MILLISECONDS", 100)
    queue = make_service().create_queue("jobs", queue_rate="2/day")
    ids = [queue.publish(number).id for number in range(3)]
    claiming = _claiming(crew, database)
    claiming.freeze()
    with pytest.raises(DatabaseUnavailable, match="stayed locked"):
        queue.consume(3)
    claiming.thaw()
    claiming.tell("go")
    assert ids[:1] == [found["id"] for found in claiming.expect("reply")["messages"]]
    assert ids[1:2] == [message.id for message in eventually(lambda: queue.consume(3), "one")]
