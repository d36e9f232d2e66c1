"""The command `consume`: prints, acknowledges, waits, stops; `--exec` runs a command each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from queue_over_sql import QueueService
from queue_over_sql.cli.consume import message_environment
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import command, environment, on_terminal, run, started, succeed
from tests.contract.queue_state import set_columns
from tests.waiting import eventually

pytestmark = pytest.mark.default_on("sqlite", "postgresql")

UNTIL_GO = "touch running; until test -e go; do sleep 0.01; done; cat"
"""A command that goes on until the file ``go`` is there, and then prints the payload."""


@pytest.fixture
def jobs(sqlite_url: str) -> str:
    """The URL of an embedded database with the queue jobs, which retries at once."""
    succeed("create", "jobs", "--retry", "fixed:0", url=sqlite_url)
    return sqlite_url


def _ready(url: str) -> int:
    ready: int = succeed("stats", "jobs", "--json", url=url).record["ready"]
    return ready


def _lease_end(url: str) -> str:
    end: str = succeed("peek", "jobs", "--status", "claimed", "--json", url=url).record[
        "lease_expires_at"
    ]
    return end


def test_prints_everything_once_and_acknowledges(database: TestDatabase) -> None:
    """What was printed is gone, on every engine; then there is nothing, exit code 3."""
    succeed("create", "jobs", url=database.url)
    succeed("publish", "jobs", url=database.url, stdin='"a"\n{"b":1}\n')
    assert '"a"\n{"b":1}\n' == succeed("consume", "jobs", url=database.url).out
    again = run("consume", "jobs", url=database.url)
    assert 3 == again.exit_code
    assert "" == again.out


def test_a_terminal_obeys_no_payload(sqlite_url: str) -> None:
    """On a terminal control characters are written out; a pipe or file gets a text as it is."""
    text = "a\tb\n\x1b[2J\x9b\u202e"
    with QueueService(sqlite_url) as service:
        service.create_queue("texts", payload="text").publish_many([text, text])
    shown = on_terminal("consume", "texts", "--count", "1", url=sqlite_url)
    piped = succeed("consume", "texts", url=sqlite_url)
    assert (0, "a\tb\r\n\\x1b[2J\\x9b\\u202e\r\n") == shown
    assert f"{text}\n" == piped.out


def test_count_leaves_the_rest(jobs: str) -> None:
    """--count takes the oldest so many, whatever the batch, and claims no others."""
    succeed("publish", "jobs", url=jobs, stdin="1\n2\n3\n4\n5\n")
    out = succeed("consume", "jobs", "--count", "3", "--batch", "2", url=jobs).out
    assert "1\n2\n3\n" == out
    assert 2 == _ready(jobs)


def test_json_has_the_delivery(jobs: str) -> None:
    """With --json each message comes with its id, attempt, headers and claim."""
    succeed("publish", "jobs", "1", "-H", "h=x", url=jobs)
    record = succeed("consume", "jobs", "--json", url=jobs).record
    assert 1 == record["payload"]
    assert 1 == record["attempt"]
    assert {"h": "x"} == record["headers"]
    assert record["consumer_id"]


def test_wait_takes_what_comes_later(jobs: str, tmp_path: Path) -> None:
    """--wait lets it stay for a message that is published meanwhile."""
    log = tmp_path / "consume.log"
    with started("consume", "jobs", "--wait", "30", "--count", "1", url=jobs, log=log) as process:
        succeed("publish", "jobs", "7", url=jobs)
        assert 0 == process.wait(30)
    assert "7\n" == Path(f"{log}.out").read_text()


def test_a_reader_that_leaves_costs_no_message(jobs: str) -> None:
    """When the pipe's reader has gone, what could not be printed stays in the queue."""
    succeed("publish", "jobs", url=jobs, stdin="1\n2\n3\n")
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = subprocess.run(
        command("consume", "jobs", "--batch", "3"),
        stdout=write_end,
        stderr=subprocess.PIPE,
        env=environment(QUEUE_OVER_SQL_URL=jobs),
        check=False,
        timeout=60,
    )
    os.close(write_end)
    assert 141 == ended.returncode
    assert b"" == ended.stderr
    assert 3 == _ready(jobs)


def test_exec_acks_successes_and_nacks_failures(
    database: TestDatabase, make_service: MakeService
) -> None:
    """Exit 0 acknowledges, anything else is a failed attempt with the end of standard error."""
    queue = make_service().create_queue("jobs", max_attempts=1)
    queue.publish_many([{"ok": True}, {"ok": False}])
    ended = run(
        "consume", "jobs", "--exec", "grep true || (echo boom >&2; exit 7)", url=database.url
    )
    [dead] = queue.archive.messages().list()
    assert 5 == ended.exit_code
    assert '{"ok":true}\n' == ended.out
    assert {"ok": False} == dead.payload
    assert "exit code 7: boom" == dead.last_error
    assert 0 == queue.messages().count()


def test_exec_retries_until_it_succeeds(jobs: str, tmp_path: Path) -> None:
    """A command that fails twice gets the message a third time, with the attempt's number."""
    succeed("publish", "jobs", "1", url=jobs)
    script = 'echo "$QUEUE_OVER_SQL_ATTEMPT" >> tries; test "$QUEUE_OVER_SQL_ATTEMPT" = 3'
    ended = run("consume", "jobs", "--wait", "50ms", "--exec", script, url=jobs, cwd=tmp_path)
    assert 5 == ended.exit_code
    assert "1\n2\n3\n" == (tmp_path / "tries").read_text()
    assert 0 == _ready(jobs)


def test_exec_environment_and_standard_input(jobs: str) -> None:
    """The payload comes on standard input, unmixed; facts come as variables, headers too."""
    succeed("publish", "jobs", '{"é": [1, null]}', "--key", "k", "-H", "trace-id=t 1", url=jobs)
    names = ("QUEUE", "MESSAGE_ID", "ATTEMPT", "MAX_ATTEMPTS", "KEY", "HEADERS", "HEADER_TRACE_ID")
    shown = "; ".join(f'printf "%s\\n" "$QUEUE_OVER_SQL_{name}"' for name in names)
    out = succeed("consume", "jobs", "--exec", f"cat; echo; {shown}", url=jobs).out
    payload, *facts = out.splitlines()
    assert {"é": [1, None]} == json.loads(payload)
    assert ["jobs", "1", "1", "5", "k", '{"trace-id":"t 1"}', "t 1"] == facts


def test_exec_goes_on_after_a_signal_without_a_name(jobs: str) -> None:
    """A real-time signal that Python does not name is a failed attempt as any other."""
    succeed("publish", "jobs", url=jobs, stdin="1\n2\n")
    number = signal.SIGRTMIN + 1
    script = f'test "$QUEUE_OVER_SQL_MESSAGE_ID" = 2 || kill -{number} $$'
    ended = run("consume", "jobs", "--count", "2", "--exec", script, url=jobs)
    [left] = succeed("peek", "jobs", "--json", url=jobs).records
    assert 5 == ended.exit_code
    assert (1, f"killed by signal {number}") == (left["attempt"], left["last_error"])


@pytest.mark.engines("sqlite")
def test_exec_goes_on_whatever_headers_there_are(
    database: TestDatabase, make_service: MakeService, engine: Engine
) -> None:
    """What no variable can hold is left out or escaped; what stops the start is a failed attempt.

    Linux takes no variable of more than 128 KiB, and not more than some MiB in all.
    """
    queue = make_service().create_queue("jobs")
    queue.publish(1, headers={"note": "\x85" * 32_000, "tenant": "a"})
    other, many, _ = (queue.publish(number, headers={"h": 1}).id for number in (2, 3, 4))
    set_columns(engine, queue, other, headers=r'{"tenant": "caf\ud83d\u0000"}')
    large = {f"h{place}": "e" * 100_000 for place in range(70)}
    set_columns(engine, queue, many, headers=json.dumps(large))
    script = 'printf "%s\\n" "${#QUEUE_OVER_SQL_HEADERS} $QUEUE_OVER_SQL_HEADER_TENANT"'
    ended = run("consume", "jobs", "--count", "4", "--exec", script, url=database.url)
    [left] = queue.messages().list()
    assert (5, ["0 a", r"28 caf\ud83d\0", "7 "]) == (ended.exit_code, ended.out.splitlines())
    assert "Message 1: QUEUE_OVER_SQL_HEADERS is too large for an environment variable" in ended.err
    assert (many, 1) == (left.id, left.attempt)
    assert "the command cannot be started: [Errno 7]" in str(left.last_error)


def test_exec_inherits_settings_and_no_facts(jobs: str) -> None:
    """A command within another one's command gets the facts of its own message only."""
    succeed("publish", "jobs", "1", url=jobs)
    names = ("KEY", "GROUP", "HEADERS", "HEADER_TENANT", "ATTEMPT", "TABLE_PREFIX", "URL")
    shown = " ".join(f"$QUEUE_OVER_SQL_{name}" for name in names)
    ended = run(
        *("consume", "jobs", "--exec", f'echo "{shown}"'),
        url=jobs,
        QUEUE_OVER_SQL_KEY="outer",
        QUEUE_OVER_SQL_GROUP="outer",
        QUEUE_OVER_SQL_HEADER_TENANT="outer",
        QUEUE_OVER_SQL_TABLE_PREFIX="queue_",
    )
    assert f"  {{}}  1 queue_ {jobs}\n" == ended.out


@pytest.mark.engines("sqlite")
def test_exec_escapes_what_the_locale_lacks(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locale of one byte a character gets escapes; the headers stay JSON."""
    queue = make_service().create_queue("jobs")
    queue.publish(1, key="é€", headers={"smile": "é\U0001f600"})
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "iso8859-1")
    facts = message_environment(queue.consume()[0])
    assert b"\xe9\\u20ac" == facts["QUEUE_OVER_SQL_KEY"]
    assert b"\xe9\\U0001f600" == facts["QUEUE_OVER_SQL_HEADER_SMILE"]
    assert rb'{"smile": "\u00e9\ud83d\ude00"}' == facts["QUEUE_OVER_SQL_HEADERS"]


def test_exec_with_json_reports_each_message(jobs: str) -> None:
    """With --json standard output has one record per message and nothing of the command's own."""
    succeed("publish", "jobs", "1", url=jobs)
    ended = run("consume", "jobs", "--json", "--exec", "echo noise", url=jobs)
    assert 0 == ended.exit_code
    assert 0 == ended.record["exit_code"]
    assert ended.record["error"] is None
    assert "noise" in ended.err


def test_exec_gets_bytes_exactly(sqlite_url: str) -> None:
    """A payload of bytes, NUL included and large, reaches the command unchanged."""
    succeed("create", "blobs", "--payload", "bytes", url=sqlite_url)
    succeed("publish", "blobs", url=sqlite_url, stdin='"' + "AAH/" * 100_000 + '"\n')
    count = f"{sys.executable} -c 'import sys; print(len(sys.stdin.buffer.read()))'"
    assert "300000\n" == succeed("consume", "blobs", "--exec", count, url=sqlite_url).out


def test_exec_extends_the_lease_of_a_long_command(jobs: str, tmp_path: Path) -> None:
    """The lease grows while a command runs, so that nobody else gets the message."""
    succeed("publish", "jobs", "1", url=jobs)
    log, arguments = tmp_path / "log", ("consume", "jobs", "--lease", "3s", "--exec", UNTIL_GO)
    with started(*arguments, url=jobs, log=log, cwd=tmp_path) as process:
        eventually((tmp_path / "running").exists, "the command runs")
        first = _lease_end(jobs)
        eventually(lambda: _lease_end(jobs) > first, "the lease is extended")
        (tmp_path / "go").touch()
        assert 0 == process.wait(30)
    assert "1" == Path(f"{log}.out").read_text()
    assert 0 == _ready(jobs)


@pytest.mark.chaos
def test_sigterm_finishes_the_current_and_gives_back_the_rest(jobs: str, tmp_path: Path) -> None:
    """After SIGTERM the running command ends and is acknowledged; the others are ready at once."""
    succeed("publish", "jobs", url=jobs, stdin="1\n2\n3\n")
    log = tmp_path / "consume.log"
    arguments = ("consume", "jobs", "--batch", "3", "--exec", UNTIL_GO)
    with started(*arguments, url=jobs, log=log, cwd=tmp_path) as process:
        eventually((tmp_path / "running").exists, "the command runs")
        process.send_signal(signal.SIGTERM)
        eventually(lambda: "Draining" in log.read_text(), "it knows that it shall end")
        (tmp_path / "go").touch()
        code = process.wait(30)
    assert 1 == log.read_text().count("Draining; send the signal again to stop immediately.")
    assert 0 == code
    assert "1" == Path(f"{log}.out").read_text()
    assert 2 == _ready(jobs)
    attempts = [m["attempt"] for m in succeed("peek", "jobs", "--json", url=jobs).records]
    assert [0, 0] == attempts


@pytest.mark.chaos
def test_a_second_signal_stops_the_command(jobs: str, tmp_path: Path) -> None:
    """Asked twice, it ends the running command at once and gives the message back."""
    succeed("publish", "jobs", "1", url=jobs)
    script = "touch running; sleep 60"
    with started(
        "consume", "jobs", "--exec", script, url=jobs, log=tmp_path / "log", cwd=tmp_path
    ) as process:
        eventually((tmp_path / "running").exists, "the command runs")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30)
    assert 1 == _ready(jobs)


@pytest.mark.chaos
def test_follow_stays_and_stops_cleanly(jobs: str, tmp_path: Path) -> None:
    """--follow prints what comes, and SIGINT ends it with code 0 and no consumer left behind."""
    log = tmp_path / "consume.log"
    with started("consume", "jobs", "--follow", url=jobs, log=log) as process:
        for number in range(2):
            succeed("publish", "jobs", str(number), url=jobs)
            expected = f"{number}\n"
            eventually(lambda e=expected: e in Path(f"{log}.out").read_text(), "it is printed")  # type: ignore[misc]
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(30)
    assert "0\n1\n" == Path(f"{log}.out").read_text()
    assert 3 == run("consumers", url=jobs).exit_code
