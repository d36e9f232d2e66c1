"""Commands that only read: `peek`, `stats`, `consumers`."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import update

from queue_over_sql import ConsumerInfo, Queue, QueueService
from queue_over_sql.cli.consumers import CONSUMER_COLUMNS, consumer_row
from queue_over_sql.cli.logs import LogFormatter
from queue_over_sql.cli.output import build_table
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import command, environment, on_terminal, run, started, succeed
from tests.waiting import eventually

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


def test_stats_count_each_status(database: TestDatabase, make_service: MakeService) -> None:
    """Ready, delayed, claimed, held and archived messages are counted apart, on every engine."""
    service = make_service()
    queue = service.create_queue("jobs", max_attempts=1)
    queue.publish_many(range(4))
    queue.consume()[0].reject("no")
    queue.consume()
    queue.publish(4, delay=3600)
    _hold_ready(service, queue)
    queue.publish(5)
    stats = succeed("stats", "jobs", "--json", url=database.url).record
    assert {"ready": 1, "delayed": 1, "claimed": 1, "held": 2, "archived": 1} == {
        name: stats[name] for name in ("ready", "delayed", "claimed", "held", "archived")
    }
    assert stats["oldest_ready_age"] >= 0
    table = succeed("stats", "jobs", url=database.url).out
    head, line = (each.split() for each in table.splitlines())
    assert "dead" == head[6], table
    assert "1" == line[6], table


def test_a_terminal_of_few_characters_shows_the_others_escaped(
    database: TestDatabase, make_service: MakeService
) -> None:
    """Nothing stops midway, JSON lines stay JSON, and a pipe gets the texts unchanged."""
    text = "ž \N{GRINNING FACE}"
    make_service().create_queue("jobs").publish_many([text, "last"])
    for encoding in ("ascii", "latin-1"):
        for options in ([], ["--json"]):
            arguments = ("peek", "jobs", *options)
            code, out = on_terminal(*arguments, url=database.url, PYTHONIOENCODING=encoding)
            assert 0 == code, out
            assert r"\u017e \ud83d\ude00" in out, out
            assert "last" in out, out
            if options:
                assert text == json.loads(out.splitlines()[0])["payload"]
    # A process of its own, because the encoding of its streams is set at its start.
    variables = environment(QUEUE_OVER_SQL_URL=database.url, PYTHONIOENCODING="ascii")
    for name in ("peek", "consume"):
        piped = subprocess.run(
            command(name, "jobs", *(["--json"] if name == "peek" else [])),
            env=variables,
            check=True,
            capture_output=True,
        )
        found = [json.loads(line) for line in piped.stdout.decode().splitlines()]
        wanted = [text, "last"]
        assert wanted == ([each["payload"] for each in found] if name == "peek" else found)


def _hold_ready(service: QueueService, queue: Queue) -> None:
    held = update(queue.table).values(available_at=None)
    ready = queue.messages(status="ready").list()
    ids = [message.id for message in ready]
    service._parts.connections.run(lambda c: c.execute(held.where(queue.table.c.id.in_(ids))))


def test_stats_of_all_queues(sqlite_url: str) -> None:
    """Without a name every queue has its line, for machines and for people."""
    for queue in ("a", "b"):
        succeed("create", queue, url=sqlite_url)
    succeed("publish", "b", url=sqlite_url, stdin="1\n" * 1234)
    records = succeed("stats", "--json", url=sqlite_url).records
    assert [("a", 0), ("b", 1234)] == [(r["queue"], r["ready"]) for r in records]
    assert "1,234" in succeed("stats", url=sqlite_url).out


def test_stats_watch_into_a_file_writes_each_look_at_once(sqlite_url: str, tmp_path: Path) -> None:
    """For people and machines: one look below the other, the first before any pause; code 0."""
    succeed("create", "jobs", url=sqlite_url)
    for given, looks in (("1h", 1), ("1h --json", 1), ("50ms", 2), ("50ms --json", 2)):
        arguments = ("stats", "--watch", "--interval", *given.split())
        log = tmp_path / given
        with started(*arguments, url=sqlite_url, log=log) as process:
            eventually(_lines_with("jobs", Path(f"{log}.out"), looks), given)
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(30)


def _lines_with(word: str, file: Path, count: int) -> Callable[[], bool]:
    return lambda: sum(word in line for line in file.read_text().splitlines()) >= count


def test_watching_without_a_pause_is_refused(sqlite_url: str) -> None:
    """An interval of nothing would only burn the database: code 2, the option is named."""
    succeed("create", "jobs", url=sqlite_url)
    ended = run("stats", "--watch", "--interval", "0", url=sqlite_url)
    assert 2 == ended.exit_code
    assert "--interval" in ended.err


def test_nothing_to_show_is_code_3(sqlite_url: str) -> None:
    """Scripts can tell an empty answer from a full one without reading it."""
    assert [3, 3] == [run(name, url=sqlite_url).exit_code for name in ("stats", "consumers")]
    succeed("create", "jobs", url=sqlite_url)
    assert 3 == run("peek", "jobs", url=sqlite_url).exit_code


def test_peek_claims_nothing_and_pages(database: TestDatabase, make_service: MakeService) -> None:
    """Looking at messages leaves them ready with no attempt counted; --after turns the page."""
    make_service().create_queue("jobs").publish_many(range(5))
    first = succeed("peek", "jobs", "--limit", "3", "--json", url=database.url).records
    last = str(first[-1]["id"])
    second = succeed("peek", "jobs", "--after", last, "--json", url=database.url).records
    assert [0, 1, 2] == [m["payload"] for m in first]
    assert [3, 4] == [m["payload"] for m in second]
    assert {0} == {m["attempt"] for m in first + second}
    assert 5 == succeed("stats", "jobs", "--json", url=database.url).record["ready"]


def test_peek_filters(sqlite_url: str, tmp_path: Path) -> None:
    """By status, key and kind."""
    del tmp_path
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", "1", "--key", "k", url=sqlite_url)
    succeed("publish", "jobs", "2", "--kind", "mail", url=sqlite_url)
    succeed("publish", "jobs", "3", "--delay", "1h", url=sqlite_url)
    filters = (("--key", "k"), ("--kind", "mail"), ("--status", "delayed"))
    found = [
        succeed("peek", "jobs", *f, "--json", url=sqlite_url).record["payload"] for f in filters
    ]
    assert [1, 2, 3] == found
    assert 2 == run("peek", "jobs", "--status", "lost", url=sqlite_url).exit_code


def test_peek_cuts_nothing_without_a_terminal(sqlite_url: str) -> None:
    """In a pipe a long payload is whole; there is no column for errors that nobody had."""
    succeed("create", "jobs", url=sqlite_url)
    payload = f'{{"text":"{"x" * 3000} end"}}'
    succeed("publish", "jobs", payload, url=sqlite_url)
    succeed("publish", "jobs", "1", url=sqlite_url)
    head, long, short = succeed("peek", "jobs", url=sqlite_url).out.splitlines()
    assert long.endswith(payload)
    assert short.endswith("  1")
    assert "due (UTC)" in head
    assert "last error" not in head


def test_cut_columns_leave_room_to_each_other() -> None:
    """What one cut column does not need is there for the other, within the width."""
    table = build_table(None, ("#id", "…a", "…b"), [(1, "x" * 100, "y" * 5)], width=50)
    console = Console(width=50, file=io.StringIO())
    _, row = ("".join(s.text for s in line) for line in console.render_lines(table))
    assert f" 1  {'x' * 38}…  {'y' * 5}" == row.rstrip()


def test_peek_into_the_archive(sqlite_url: str) -> None:
    """--archive shows what died, with its reason, for machines and for people."""
    succeed("create", "jobs", "--max-attempts", "1", url=sqlite_url)
    succeed("publish", "jobs", '{"a":1}', url=sqlite_url)
    run("consume", "jobs", "--exec", "echo broken >&2; exit 1", url=sqlite_url)
    record = succeed("peek", "jobs", "--archive", "--json", url=sqlite_url).record
    shown = succeed("peek", "jobs", "--archive", url=sqlite_url).out
    assert ("failed", "failed") == (record["outcome"], record["status"])
    assert "exit code 1: broken" == record["last_error"]
    assert "broken" in shown


def test_consumers_names_who_runs(database: TestDatabase, make_service: MakeService) -> None:
    """A started service is listed with its name, host and process."""
    with make_service(consumer_name="mailer") as service:
        record = succeed("consumers", "--json", url=database.url).record
        assert service.consumer_id == record["consumer_id"]
        assert "mailer" == record["name"]
        _, row = succeed("consumers", url=database.url).out.splitlines()
        name, host, pid, shown, *_ = row.split()
        assert "mailer" == name
        assert record["host"] == host
        assert os.getpid() == int(pid)
        assert str(service.consumer_id)[:8] == shown


def test_consumers_fit_a_terminal_of_80_columns() -> None:
    """Even with the longest names the process, the id and the ages are whole."""
    now = datetime.now(UTC)
    consumer = ConsumerInfo("0123456789abcdef", "n" * 60, "h" * 60, 4_194_304, now, now, now)
    table = build_table(None, CONSUMER_COLUMNS, [consumer_row(consumer)], width=80)
    console = Console(width=80, file=io.StringIO())
    _, row = ("".join(s.text for s in line) for line in console.render_lines(table))
    assert ["4194304", "01234567", "0.0s", "0.0s", "ago"] == row.split()[2:]
    assert len(row.rstrip()) <= 80


OBEYED = "\x1b[2J\x9b\x7f\u202e\u2066\n"
"""Clears a terminal, begins a command for it, and turns the direction of what follows."""
WRITTEN_OUT = r"\x1b[2J\x9b\x7f\u202e\u2066"


def test_a_terminal_obeys_nothing_that_is_stored(sqlite_url: str) -> None:
    """Tables and listings write out what a terminal would obey, also where they go to a pipe."""
    service = QueueService(sqlite_url, consumer_name=OBEYED)
    queue = service.create_queue("jobs", payload="text", archive="all")
    queue.publish(OBEYED, key=OBEYED, kind=OBEYED)
    queue.consume()[0].reject(OBEYED)
    queue.publish(OBEYED, key=OBEYED)
    service.schedules.add("often", "jobs", OBEYED, every=60, headers={"a": OBEYED})
    looks = {
        ("peek", "jobs"): 2,
        ("peek", "jobs", "--archive"): 4,
        ("consumers",): 1,
        ("schedule", "show", "often"): 1,
    }
    for look, least in looks.items():
        _, on_screen = on_terminal(*look, url=sqlite_url)
        piped = succeed(*look, url=sqlite_url).out
        obeyed = [one for one in ("\x1b[2J", *OBEYED[4:-1]) if one in on_screen + piped]
        assert [] == obeyed, look
        assert WRITTEN_OUT[:8] in on_screen, look
        assert least <= piped.count(WRITTEN_OUT), look
    service.stop()


def test_json_writes_out_what_a_terminal_obeys(jobs: Queue, sqlite_url: str) -> None:
    """As JSON does, so that a reader of JSON gets the same text."""
    jobs.publish(OBEYED)
    ended = succeed("peek", "jobs", "--json", url=sqlite_url)
    assert OBEYED == ended.record["payload"]
    assert ended.out.isascii()


def test_errors_and_logs_write_out_what_a_terminal_obeys(sqlite_url: str) -> None:
    """Their own lines stay: an error says in the second one what to do."""
    ended = run("stats", f"no{OBEYED}", url=sqlite_url)
    assert WRITTEN_OUT in ended.err
    assert OBEYED[:-1] not in ended.err
    record = logging.LogRecord("name", logging.INFO, "", 0, f"a\n{OBEYED}", (), None)
    assert f"a\n{WRITTEN_OUT}\n" == LogFormatter().format(record)
