"""The message about the messages that a query of `spark process` has left."""

from __future__ import annotations

import json

import pytest
import typer
from typer.core import TyperCommand

from queue_over_sql import QueueService
from queue_over_sql.cli.session import CommandSession, DatabaseOptions
from queue_over_sql.cli.spark_process import (
    Left,
    _Processed,
    _report,
    left_in,
    reporting_what_is_held,
)
from queue_over_sql.testing.plugin import TestDatabase
from tests.contract.durable.queries import Query

pytestmark = pytest.mark.engines("sqlite")


@pytest.fixture
def session(database: TestDatabase, service: QueueService) -> CommandSession:
    """Of the command: 10 messages wait, a query has done 2 and holds 4, a consumer holds 3."""
    queue = service.create_queue("jobs")
    queue.publish_many(range(19))
    query = Query(queue, name="reports")
    query.batch(most=2)
    query.batch(most=4)
    assert 3 == len(queue.consume(3))
    return CommandSession(TyperCommand("process"), obj=DatabaseOptions(url=database.url))


def _done(messages: int) -> _Processed:
    done = _Processed()
    if messages:
        done.take([{"batchId": 0, "numInputRows": messages}])
    return done


def test_what_is_left_is_told_apart(session: CommandSession) -> None:
    """A query that has never been there holds nothing; without a queue nothing can be said."""
    assert Left(waiting=10, own=4, others=3) == left_in(session, "jobs", "reports")
    assert Left(waiting=10, own=0, others=7) == left_in(session, "jobs", "another")
    assert left_in(session, "import", "reports") is None


def test_a_query_that_was_stopped_says_what_is_left(
    session: CommandSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """What waits, and what it holds itself; that is no success of all."""
    _report(session, "jobs", "reports", _done(2), stopped=True)
    told = capsys.readouterr()
    assert told.out.startswith("Processed 2 messages of queue jobs in 1 batch. Stopped; ")
    assert told.out.endswith(" 14 messages are left. Start it again to continue.\n")
    assert not told.err


@pytest.mark.parametrize(
    ("stopped", "messages", "left"), [(True, 2, 14), (False, 2, None), (False, 0, None)]
)
def test_a_script_is_told_the_same(
    session: CommandSession,
    stopped: bool,
    messages: int,
    left: int | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By two fields of the record."""
    session.output.machine = True
    _report(session, "jobs", "reports", _done(messages), stopped=stopped)
    record = json.loads(capsys.readouterr().out)
    assert stopped == record["stopped"]
    assert left == record["left"]


def test_where_others_hold_all_it_is_said(
    session: CommandSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was processed, and nothing is wrong; who did process something needs no remark."""
    _report(session, "jobs", "another", _done(0), stopped=False)
    told = capsys.readouterr()
    assert "Processed 0 messages of queue jobs in 0 batches.\n" == told.out
    assert "Other consumers hold 7 of its messages; see: queue-over-sql consumers\n" == told.err
    _report(session, "jobs", "another", _done(1), stopped=False)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("consumer", "code", "told"),
    [("reports", 1, True), ("reports", 0, False), ("another", 1, False)],
)
def test_a_query_that_failed_holds_its_messages(
    consumer: str,
    code: int,
    told: bool,
    session: CommandSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is said how they become free, with the command to copy."""
    with pytest.raises(typer.Exit), reporting_what_is_held(session, "jobs", consumer):
        raise typer.Exit(code)
    said = capsys.readouterr().err
    assert told == ("holds 4 messages" in said)
    assert told == said.endswith("queue-over-sql consumer release reports\n")
