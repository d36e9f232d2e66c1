"""Everything at once for some seconds, with kills; at the end the account must balance."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from queue_over_sql import FixedDelay
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.chaos.account import archived_count, archived_tokens
from tests.chaos.processes import Crew, Process
from tests.chaos.roles import consumer, publisher
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

CONSUMERS = 3


def habits(crew: Crew, url: str, count: int) -> Iterator[consumer.Arguments]:
    """Fickle consumers, each with its own luck and batch size."""
    for seed in range(count):
        yield consumer.Arguments(
            url,
            str(crew.journals),
            batch=1 + 4 * (seed % 4),
            fickle=True,
            seed=seed,
            consumer_timeout=2.0,
        )


def publishers(crew: Crew, url: str) -> list[Process]:
    """One that publishes singly and one that publishes in batches."""
    pauses = {"one": 0.01, "many": 0.3}
    return [
        crew.spawn(publisher.Arguments(url, str(crew.journals), mode, mode, pause=pause))
        for mode, pause in pauses.items()
    ]


def go_on(crew: Crew) -> None:
    """Wait until some more messages were delivered, to whomever."""
    before = len(crew.account().tokens("delivered"))
    eventually(lambda: len(crew.account().tokens("delivered")) > before + 20, "work goes on")


def start(process: Process) -> Process:
    """Let a role begin its loop."""
    process.expect("ready")
    process.tell("go")
    return process


def finish(processes: list[Process]) -> None:
    """Let all roles end by themselves."""
    for process in processes:
        process.tell("stop")
    for process in processes:
        process.expect("done")


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.full)])
def test_the_account_balances_after_mixed_load_and_kills(
    kills: int, make_service: MakeService, database: TestDatabase, sql: Engine, crew: Crew
) -> None:
    """Random verbs and `kill -9`: each message is finished once, and none was ever in two hands."""
    make_service().create_queue(
        "jobs", archive="all", max_attempts=10_000, retry=FixedDelay(0.05), lease=60.0
    )
    luck = random.Random(7)  # noqa: S311 - chance, not a secret
    writers = publishers(crew, database.url)
    # All are ready before the first message, so that a slow start does not pile up messages.
    readers = [crew.spawn(kind) for kind in habits(crew, database.url, CONSUMERS + kills)]
    for process in writers + readers:
        process.expect("ready")
    readers, heirs = readers[:CONSUMERS], readers[CONSUMERS:]
    for process in writers + readers:
        process.tell("go")
    for heir in heirs:
        go_on(crew)
        time.sleep(luck.uniform(0.0, 0.3))  # somewhere within whatever they do
        readers.pop(luck.randrange(len(readers))).kill()
        heir.tell("go")
        readers.append(heir)
    go_on(crew)
    finish(writers)
    published = sorted(crew.account().tokens("published"))
    for process in readers:
        process.check_alive()
    eventually(
        lambda: archived_count(sql) >= len(published),
        "all published messages finished",
        within=90,
        every=0.2,
    )
    finish(readers)

    account = crew.account()
    assert published == sorted(archived_tokens(sql, "done"))
    assert [] == account.check(sql)
    assert set(published) == set(account.tokens("delivered"))
