"""The command `request`: send, wait and print the reply; and the list of temporary queues."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import Column, Integer

from queue_over_sql import Message, Queue, QueueService
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import command, environment, run, succeed
from tests.contract.request_reply.asking_and_answering import LONGEST_WAIT, answering
from tests.waiting import eventually

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


def test_a_reply_is_printed(database: TestDatabase, make_service: MakeService) -> None:
    """The payload for a person, all of the reply for a machine; nothing temporary is left."""
    service = make_service()
    queue = service.create_queue("jobs", priorities=2)

    def answer(message: Message) -> None:
        facts = [message.payload, message.kind, message.headers["trace"], message.priority]
        message.reply(facts, kind="facts", headers={"n": 1})

    options = ("--kind", "ask", "-H", "trace=abc", "--priority", "1", "--timeout", "20s")
    with answering(queue, answer):
        plain = succeed("request", "jobs", '{"a": 1}', *options, url=database.url)
        record = succeed("request", "jobs", "2", *options, "--json", url=database.url).record
    assert '[{"a":1},"ask","abc",1]\n' == plain.out
    assert [2, "ask", "abc", 1] == record["payload"]
    assert "facts" == record["kind"]
    assert 1 == record["headers"]["n"]
    assert ["jobs"] == [one.name for one in service.queues(temporary=True)]


def test_a_column_of_the_queues_own(sqlite_url: str) -> None:
    """It is given as with publish; one that is not there is an error in one sentence."""
    with QueueService(sqlite_url) as service:
        queue = service.create_queue("jobs", columns=[Column("tenant", Integer, nullable=False)])
        with answering(queue, lambda message: message.reply(message.columns["tenant"])):
            given = ("--column", "tenant=7", "--timeout", "20s")
            assert "7\n" == succeed("request", "jobs", "1", *given, url=sqlite_url).out
        refused = run("request", "jobs", "1", "--column", "owner=7", url=sqlite_url)
    assert "no column owner" in refused.err
    assert "Traceback" not in refused.err
    assert 0 != refused.exit_code


def test_no_reply_in_time(database: TestDatabase, make_service: MakeService) -> None:
    """Exit code 3, a sentence that says what became of the request, and no request is left."""
    queue = make_service().create_queue("jobs")
    ended = run("request", "jobs", "1", "--timeout", "50ms", url=database.url)
    assert 3 == ended.exit_code
    assert "" == ended.out
    assert "withdrawn" in ended.err
    assert "Traceback" not in ended.err
    assert 0 == queue.messages().count()


@pytest.mark.timing
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_request_is_taken_back(
    database: TestDatabase, make_service: MakeService, number: signal.Signals, code: int
) -> None:
    """Nobody waits for the reply any more, so nobody needs to begin with it."""
    service = make_service()
    queue = service.create_queue("jobs")
    with subprocess.Popen(
        command("request", "jobs", "1"),
        env=environment(QUEUE_OVER_SQL_URL=database.url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        eventually(lambda: queue.messages().count() == 1, "the request is there")
        time.sleep(2)  # until its publisher knows that, too, and waits
        process.send_signal(number)
        assert code == process.wait(LONGEST_WAIT)
    assert 0 == queue.messages().count()
    assert ["jobs"] == [one.name for one in service.queues(temporary=True)]


def test_a_plain_string(sqlite_url: str, make_text_queue: Callable[[str], Queue]) -> None:
    """As for publish: a queue of text takes it as it is, another says how to write it."""
    succeed("create", "jobs", url=sqlite_url)
    refused = run("request", "jobs", "hello", url=sqlite_url)
    assert 2 == refused.exit_code
    assert '"like this"' in refused.err
    with answering(make_text_queue(sqlite_url), lambda m: m.reply(m.payload.upper())):
        assert '"HELLO"\n' == succeed("request", "texts", "hello", url=sqlite_url).out


@pytest.fixture
def make_text_queue() -> Iterator[Callable[[str], Queue]]:
    """Makes the queue `texts`, of text, on a service that is stopped at the end."""
    with ExitStack() as stack:

        def make(url: str) -> Queue:
            service = QueueService(url)
            stack.callback(service.stop)
            return service.create_queue("texts", payload="text")

        yield make


def test_requests_that_cannot_be(sqlite_url: str) -> None:
    """No queue, no time, no such format or no payload: the code tells why, at once."""
    succeed("create", "jobs", url=sqlite_url)
    wrong = {
        ("nowhere", "1"): 3,
        ("jobs", "1", "--timeout", "0"): 2,
        ("jobs", "1", "--format", "message"): 2,
        ("jobs",): 2,
    }
    for arguments, exit_code in wrong.items():
        ended = run("request", *arguments, url=sqlite_url)
        assert exit_code == ended.exit_code, arguments
        assert "Traceback" not in ended.err, arguments


def test_temporary_queues_in_the_listing(database: TestDatabase, make_service: MakeService) -> None:
    """Only with --temporary, and marked as such."""
    service = make_service()
    queue = service.create_queue("jobs")
    with answering(queue, lambda m: m.reply(1)):
        queue.request(1, timeout=LONGEST_WAIT)
    plain = succeed("list", "--json", url=database.url).records
    everything = succeed("list", "--temporary", "--json", url=database.url).records
    table = succeed("list", "--temporary", url=database.url).out
    assert [("jobs", False)] == [(r["queue"], r["temporary"]) for r in plain]
    assert [False, True] == sorted(r["temporary"] for r in everything)
    assert 1 == sum("temporary" in line for line in table.splitlines())
