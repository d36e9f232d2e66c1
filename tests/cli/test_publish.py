"""The command `publish`: one message with its options, or thousands of lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from queue_over_sql import Publication, Queue, QueueService
from queue_over_sql.cli import lines
from queue_over_sql.cli.lines import LineFormat, LineReader, LineSource
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.publish import publish_lines
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import command, environment, on_terminal, run, succeed
from tests.waiting import eventually

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


def test_lines_from_a_file_come_back_in_order(database: TestDatabase, tmp_path: Path) -> None:
    """2,500 JSON Lines, more than two batches, arrive each once and in order on every engine."""
    payloads = [{"n": n, "text": f"é {n} \U0001f600"} for n in range(2500)]
    source = tmp_path / "lines.jsonl"
    source.write_text("".join(json.dumps(p) + "\n" for p in payloads))
    succeed("create", "jobs", url=database.url)
    published = succeed("publish", "jobs", "--file", str(source), "--json", url=database.url)
    assert 2500 == published.record["published"]
    consumed = succeed("consume", "jobs", "--batch", "500", url=database.url)
    assert payloads == consumed.records


def test_one_message_with_all_its_options(sqlite_url: str) -> None:
    """Key, kind, headers, priority, delay, attempts, expiry, group and an own column arrive."""
    options = ("--priorities", "3", "--column", "tenant:string(9)", "--group-limit", "1")
    succeed("create", "jobs", *options, url=sqlite_url)
    published = succeed(
        "publish",
        "jobs",
        '{"to": "a"}',
        *("--key", "k1", "--kind", "mail", "-H", "trace=abc", "-H", 'deep={"n": 1}'),
        *("--priority", "2", "--delay", "1h", "--max-attempts", "9", "--column", "tenant=acme"),
        *("--expires", "2h", "--group", "Acme "),
        "--json",
        url=sqlite_url,
    )
    [message] = succeed("peek", "jobs", "--json", url=sqlite_url).records
    due = datetime.fromisoformat(message["available_at"])
    assert "created" == published.record["outcome"]
    assert {"to": "a"} == message["payload"]
    assert "k1" == message["key"]
    assert "mail" == message["kind"]
    assert 2 == message["priority"]
    assert 9 == message["max_attempts"]
    assert {"tenant": "acme"} == message["columns"]
    assert "Acme " == message["group"]
    assert {"trace": "abc", "deep": {"n": 1}} == message["headers"]
    assert timedelta(minutes=59) < due - datetime.now(UTC) <= timedelta(hours=1)
    assert timedelta(hours=1) == datetime.fromisoformat(message["expires_at"]) - due


def test_at_takes_an_instant_with_an_offset(sqlite_url: str) -> None:
    """--at sets the instant exactly; one without an offset is refused, not guessed."""
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", "1", "--at", "2099-01-31T09:00:00+01:00", url=sqlite_url)
    [message] = succeed("peek", "jobs", "--json", url=sqlite_url).records
    at = datetime.fromisoformat(message["scheduled_at"])
    naive = run("publish", "jobs", "1", "--at", "2099-01-31T09:00:00", url=sqlite_url)
    assert datetime(2099, 1, 31, 8, tzinfo=UTC) == at
    assert 2 == naive.exit_code
    assert "time zone" in naive.err


def test_conflicts_of_keys(sqlite_url: str) -> None:
    """Raise fails with code 1, skip and replace say what they did."""
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", "1", "--key", "k", url=sqlite_url)
    refused = run("publish", "jobs", "2", "--key", "k", url=sqlite_url)
    outcomes = [
        succeed(
            "publish", "jobs", "2", "--key", "k", "--on-conflict", how, "--json", url=sqlite_url
        )
        for how in ("skip", "replace")
    ]
    keyless = run("publish", "jobs", "2", "--on-conflict", "skip", url=sqlite_url)
    assert 2 == keyless.exit_code
    assert "no key" in keyless.err
    assert 1 == refused.exit_code
    assert ["skipped", "replaced"] == [ended.record["outcome"] for ended in outcomes]
    assert "2\n" == succeed("consume", "jobs", url=sqlite_url).out


def test_an_argument_that_is_no_json_is_explained(sqlite_url: str) -> None:
    """The error shows how to write a plain string; with --format text it is one."""
    succeed("create", "jobs", url=sqlite_url)
    refused = run("publish", "jobs", "hello", url=sqlite_url)
    succeed("publish", "jobs", "hello", "--format", "text", url=sqlite_url)
    assert 2 == refused.exit_code
    assert "--format" in refused.err
    assert '"hello"\n' == succeed("consume", "jobs", url=sqlite_url).out


def test_queues_of_text_and_bytes(sqlite_url: str) -> None:
    """Text is given and printed as it is; bytes are UTF-8 in, Base64 in lines and out."""
    succeed("create", "texts", "--payload", "text", url=sqlite_url)
    succeed("create", "blobs", "--payload", "bytes", url=sqlite_url)
    succeed("publish", "texts", "plain é", url=sqlite_url)
    succeed("publish", "blobs", url=sqlite_url, stdin='"AAH/"\n')
    blob = succeed("consume", "blobs", "--json", url=sqlite_url).record
    assert "plain é\n" == succeed("consume", "texts", url=sqlite_url).out
    assert "AAH/" == blob["payload"]
    assert "base64" == blob["payload_encoding"]


def test_messages_travel_from_queue_to_queue(sqlite_url: str) -> None:
    """What peek --json writes, publish --format message reads: content kept, delivery anew."""
    for queue in ("a", "b"):
        succeed("create", queue, "--group-limit", "1", url=sqlite_url)
    options = ("--key", "k", "--kind", "x", "-H", "h=1", "--group", "é ")
    succeed("publish", "a", "[1]", *options, url=sqlite_url)
    lines = succeed("peek", "a", "--json", url=sqlite_url).out
    succeed("publish", "b", "--format", "message", url=sqlite_url, stdin=lines)
    [copy] = succeed("peek", "b", "--json", url=sqlite_url).records
    fields = ("payload", "key", "kind", "headers", "attempt", "group")
    assert ([1], "k", "x", {"h": 1}, 0, "é ") == tuple(copy[name] for name in fields)


def test_keys_in_lines_with_skip(sqlite_url: str) -> None:
    """With --on-conflict skip the same lines may be sent again; the outcomes are counted."""
    succeed("create", "jobs", url=sqlite_url)
    lines = "".join(json.dumps({"payload": n, "key": f"k{n}"}) + "\n" for n in range(5))
    options = ("--format", "message", "--on-conflict", "skip", "--json")
    first = succeed("publish", "jobs", *options, url=sqlite_url, stdin=lines).record
    second = succeed("publish", "jobs", *options, url=sqlite_url, stdin=lines).record
    assert {"created": 5} == {name: first[name] for name in first.keys() - {"queue", "published"}}
    assert {"skipped": 5} == {name: second[name] for name in second.keys() - {"queue", "published"}}


def test_a_bad_line_stops_after_those_before_it(sqlite_url: str) -> None:
    """The error names the line; what stands before it is published, what follows is not."""
    succeed("create", "jobs", url=sqlite_url)
    bad = {
        b"{oops": "not JSON",
        b"NaN": "NaN",
        "\udce9".encode("utf-8", "surrogateescape"): "utf-8",
        b"[" * 100_000: "line 3",
    }
    for line, reason in bad.items():
        ended = run("publish", "jobs", url=sqlite_url, stdin=b"1\n2\n" + line + b"\n4\n")
        assert 2 == ended.exit_code, line[:9]
        assert "line 3" in ended.err, line[:9]
        assert reason in ended.err, line[:9]
        assert "Traceback" not in ended.err, line[:9]
        assert "1\n2\n" == succeed("consume", "jobs", url=sqlite_url).out, line[:9]


def test_json_that_would_change_is_refused(sqlite_url: str) -> None:
    """A key twice and a number that a float rounds; what a float holds is kept as it is."""
    succeed("create", "jobs", url=sqlite_url)
    twice, rounded = '{"a": 1, "a": 2}', "1.000000000000000005"
    for wrong, reason in ((twice, "twice"), (rounded, "string"), ("1e400", "inf")):
        for arguments, stdin in (
            (["publish", "jobs", wrong], ""),
            (["publish", "jobs"], f"{wrong}\n"),
            (["publish", "jobs", "1", "-H", f"h={wrong}"], ""),
        ):
            ended = run(*arguments, url=sqlite_url, stdin=stdin)
            assert 2 == ended.exit_code, (arguments, ended.err)
            assert reason in ended.err, (arguments, ended.err)
    exact = ["0.1", "0.10000000000000001", "1.50", "1e5", "123456789012345678901", '{"a":"a"}']
    succeed("publish", "jobs", url=sqlite_url, stdin="\n".join(exact))
    consumed = succeed("consume", "jobs", url=sqlite_url).out
    assert list(map(json.loads, exact)) == list(map(json.loads, consumed.splitlines()))


def test_an_error_in_a_later_batch_tells_how_many_are_in(sqlite_url: str) -> None:
    """A batch that fails leaves nothing of itself; the message names the line and where to go on.

    Blank lines count as lines, though they are no messages.
    """
    succeed("create", "jobs", "--max-payload-bytes", "10", url=sqlite_url)
    lines = "\n0\n1\n2\n3\n4\n" + f'"{"x" * 50}"\n6\n'
    ended = run("publish", "jobs", "--batch", "3", url=sqlite_url, stdin=lines)
    assert 1 == ended.exit_code
    assert "line 7: The payload takes 52 bytes" in ended.err
    assert "5 lines" in ended.err
    assert "Line 7 and all that follow are not published" in ended.err
    assert "0\n1\n2\n3\n4\n" == succeed("consume", "jobs", url=sqlite_url).out


def test_the_line_that_the_database_refuses_is_named(
    database: TestDatabase, make_service: MakeService
) -> None:
    """A key that is taken, in the middle of a batch: its line, no other, and nothing is left."""
    queue = make_service().create_queue("jobs")
    queue.publish(0, key="k3")
    lines = "".join(json.dumps({"payload": n, "key": f"k{n}"}) + "\n" for n in range(1, 6))
    ended = run("publish", "jobs", "--format", "message", url=database.url, stdin=lines)
    assert 1 == ended.exit_code
    assert "line 3: Queue 'jobs' already has a live message with key 'k3'" in ended.err
    assert "0 lines" in ended.err
    assert 1 == queue.messages().count()


def test_what_a_taken_key_says_is_true(sqlite_url: str) -> None:
    """Of a finished message it advises no replace; of one key twice it names both lines, no id."""
    succeed("create", "jobs", "--dedup-window", "1h", url=sqlite_url)
    succeed("publish", "jobs", "1", "--key", "k", url=sqlite_url)
    succeed("consume", "jobs", url=sqlite_url)
    finished = run("publish", "jobs", "2", "--key", "k", url=sqlite_url)
    assert "message 1 with key 'k' finished within" in finished.err
    assert "Publish with --on-conflict skip to ignore" in finished.err
    assert "replace" not in finished.err
    lines = "".join(json.dumps({"payload": 1, "key": key}) + "\n" for key in "abca")
    twice = run("publish", "jobs", "--format", "message", url=sqlite_url, stdin=lines)
    assert "line 4: line 1 has the same key. Two messages of one batch" in twice.err
    assert 0 == succeed("stats", "jobs", "--json", url=sqlite_url).record["ready"]


def test_one_is_no_plural(sqlite_url: str) -> None:
    """One message is not called messages."""
    succeed("create", "jobs", url=sqlite_url)
    published = succeed("publish", "jobs", url=sqlite_url, stdin="1\n").out
    purged = succeed("purge", "jobs", "--yes", url=sqlite_url).out
    assert "Published 1 message to queue jobs.\n" == published
    assert "Removed 1 message from queue jobs.\n" == purged


def test_blank_lines_and_a_missing_last_newline(sqlite_url: str) -> None:
    """Blank lines are no messages; the last line counts without its newline; CRLF is fine."""
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", url=sqlite_url, stdin="1\r\n\n  \n2")
    assert "1\n2\n" == succeed("consume", "jobs", url=sqlite_url).out


def test_lines_of_a_slow_pipe_do_not_wait_for_more(sqlite_url: str) -> None:
    """A line is published when it comes, though the pipe stays open and the batch is not full."""
    succeed("create", "jobs", url=sqlite_url)
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        command("publish", "jobs"),
        stdin=read_end,
        env=environment(QUEUE_OVER_SQL_URL=sqlite_url),
        stdout=subprocess.DEVNULL,
    ) as process:
        os.close(read_end)
        os.write(write_end, b"1\n")
        eventually(
            lambda: succeed("stats", "jobs", "--json", url=sqlite_url).record["ready"] == 1,
            "the line is published",
        )
        os.close(write_end)
        assert 0 == process.wait(30)


@pytest.mark.timing
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_tells_from_where_to_send_again(
    sqlite_url: str, number: signal.Signals, code: int
) -> None:
    """As an error does; what is in stays in, and the exit code says which signal it was."""
    succeed("create", "jobs", url=sqlite_url)
    with subprocess.Popen(
        command("publish", "jobs", "--batch", "4"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(QUEUE_OVER_SQL_URL=sqlite_url),
    ) as process:
        assert process.stdin
        process.stdin.write(b"1\n" * 10)
        process.stdin.flush()
        eventually(
            lambda: succeed("stats", "jobs", "--json", url=sqlite_url).record["ready"] == 10,
            "the lines are published",
        )
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert code == process.returncode, said
    assert b"Published so far: 10 lines. Line 11 and all that follow are not published" in said
    assert b"Traceback" not in said, said


def test_an_interrupted_transaction_is_told(
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody knows whether its commit was done, so its lines are neither in nor out."""

    def interrupted(queue: Queue, messages: list[Publication], **options: Any) -> int:
        done = load(queue, messages, **options)
        if messages[0].payload == 3:
            raise KeyboardInterrupt
        return done

    load = Queue.load
    monkeypatch.setattr(Queue, "load", interrupted)
    file = tmp_path / "lines"
    file.write_text("1\n2\n3\n4\n5\n")
    with QueueService(sqlite_url) as service, pytest.raises(KeyboardInterrupt):
        publish_lines(
            Output(),
            service,
            service.create_queue("jobs"),
            LineReader("json", LineFormat.PAYLOAD, {}),
            file,
            on_conflict="raise",
            batch=2,
        )
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "Published so far: 2 lines. The transaction of lines 3-4 was interrupted, so they may be "
        "published, too. The lines that follow are not." == said
    )


def test_contradictions_are_wrong_usage(sqlite_url: str) -> None:
    """An argument and a file, or one key for many lines: code 2, and nothing is published."""
    succeed("create", "jobs", url=sqlite_url)
    for arguments in (("1", "--file", "x"), ("--key", "k")):
        ended = run("publish", "jobs", *arguments, url=sqlite_url, stdin="1\n")
        assert 2 == ended.exit_code, arguments
    assert 3 == run("consume", "jobs", url=sqlite_url).exit_code


def test_the_progress_of_a_file_tells_messages_from_bytes(sqlite_url: str, tmp_path: Path) -> None:
    """On a terminal: how many messages, and how much of the file; the numbers have their units."""
    succeed("create", "jobs", url=sqlite_url)
    file = tmp_path / "lines"
    file.write_text(f'"{"x" * 97}"\n' * 20)
    code, shown = on_terminal("publish", "jobs", "-f", str(file), url=sqlite_url)
    assert 0 == code, shown
    assert "Publishing 20 messages" in shown, shown
    assert "2.0/2.0 kB" in shown, shown
    assert "2000/2000" not in shown


def test_a_missing_file_is_an_error_in_words(sqlite_url: str, tmp_path: Path) -> None:
    """Exit code 1 and the name of the file, no traceback."""
    succeed("create", "jobs", url=sqlite_url)
    ended = run("publish", "jobs", "--file", str(tmp_path / "none.jsonl"), url=sqlite_url)
    assert 1 == ended.exit_code
    assert "none.jsonl" in ended.err.replace("\n", "")
    assert "Traceback" not in ended.err


def test_a_long_line_costs_what_its_bytes_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line in thousands of chunks takes no more time than as many bytes in short lines."""
    monkeypatch.setattr(lines, "READ_BYTES", 1024)
    long, short = b"x" * 1023 * 8192 + b"\n", (b"x" * 1022 + b"\n") * 8192
    assert _seconds_to_read(long, tmp_path) < 20 * _seconds_to_read(short, tmp_path)


def _seconds_to_read(content: bytes, folder: Path) -> float:
    file = folder / "lines"
    file.write_bytes(content)
    with file.open("rb") as stream, Progress(disable=True) as bar:
        source = LineSource(stream, LineReader("text", LineFormat.TEXT, {}), bar, Output())
        before = time.process_time()
        read = [one.payload for batch in source.batches(1000) for one in batch.publications]
        seconds = time.process_time() - before
    assert content.decode().splitlines() == read
    return seconds
