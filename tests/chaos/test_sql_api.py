"""Shells and Python consumers drain one queue together, and some of each are killed."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine

from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import archived_count, archived_tokens, live_tokens
from tests.chaos.processes import Crew
from tests.chaos.roles import consumer, publisher
from tests.chaos.shells import ShellConsumer
from tests.chaos.test_mixed import finish, start
from tests.waiting import eventually

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(180),
    pytest.mark.engines("postgresql", "mariadb", "mysql"),
    pytest.mark.usefixtures("functions_allowed"),
    pytest.mark.default_on("postgresql", "mysql"),
]

SHELLS = 3


def join(everyone: ExitStack, url: str, journals: Path, number: int) -> ShellConsumer:
    """One more shell, which is ended when all are, and must not have failed."""
    shell = ShellConsumer(url, journals, f"shell-{number}")
    everyone.callback(shell.close)
    return shell


@pytest.mark.parametrize("kills", [2, pytest.param(4, marks=pytest.mark.full)])
def test_shells_and_workers_drain_one_queue(
    kills: int, make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """Both put, get and die, psql or mysql beside Python: none is done twice, none is lost."""
    service = make_service()
    service.create_queue("jobs", archive="all", max_attempts=10_000, lease=5.0)
    service.sql_api.install()
    journals, url = crew.journals, database.url
    luck = random.Random(11)  # noqa: S311 - chance, not a secret
    writer = start(crew.spawn(publisher.Arguments(url, str(journals), "one", "one", pause=0.01)))
    readers = [
        start(crew.spawn(consumer.Arguments(url, str(journals), batch=3, consumer_timeout=2.0)))
        for _ in range(2)
    ]
    with ExitStack() as everyone:
        shells = [join(everyone, url, journals, number) for number in range(SHELLS)]
        for number in range(kills):
            time.sleep(luck.uniform(0.3, 1.0))
            shells.pop(luck.randrange(SHELLS)).kill()
            shells.append(join(everyone, url, journals, SHELLS + number))
        readers.pop().kill()
        finish([writer])
        for shell in shells:
            shell.finish()
    eventually(lambda: not live_tokens(sql), "the queue is empty", within=60, every=0.2)
    finish(readers)

    account = crew.account()
    done = archived_tokens(sql, "done")
    assert archived_count(sql) == len(done)
    # What a shell was putting when it was killed may be there or not.
    assert set(account.tokens("published")) <= set(done) <= set(account.tokens("intends"))
    assert [] == account.check(sql)
    consumers = {event.consumer for event in account.events if event.act == "settled"}
    assert "sql-api" in consumers
    assert 2 <= len(consumers)
