"""The commands of `schedule`."""

from __future__ import annotations

import io
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from queue_over_sql import Queue, QueueService
from queue_over_sql.cli.output import build_table
from queue_over_sql.cli.schedules import COLUMNS, _listed
from queue_over_sql.testing.plugin import TestDatabase
from tests.cli.command_line import run, started, succeed
from tests.waiting import eventually

pytestmark = pytest.mark.default_on("sqlite", "postgresql")

DAILY = ("--cron", "30 6 * * 1-5", "--timezone", "Europe/Zagreb")


def test_the_life_of_a_schedule(database: TestDatabase) -> None:
    """Added, listed, run, paused, resumed and removed by commands alone, on every engine."""
    url = database.url
    succeed("create", "mails", url=url)
    added = succeed("schedule", "add", "report", "mails", '{"to": "ada"}', *DAILY, url=url)
    assert added.out.startswith("Schedule report publishes to queue mails, next at 20")
    [listed] = succeed("schedule", "list", "--json", url=url).records
    assert "report" == listed["name"]
    assert "mails" == listed["queue"]
    assert {"to": "ada"} == listed["payload"]
    assert 1 == len(succeed("peek", "mails", "--json", url=url).records)
    [ran] = succeed("schedule", "run", "report", "--json", url=url).records
    [message] = succeed("consume", "mails", "--json", url=url).records
    assert "mails" == ran["queue"]
    assert {"to": "ada"} == message["payload"]
    assert "Schedule report is paused.\n" == succeed("schedule", "pause", "report", url=url).out
    assert 3 == run("peek", "mails", url=url).exit_code
    assert "Schedule report is resumed" in succeed("schedule", "resume", "report", url=url).out
    assert 1 == len(succeed("peek", "mails", "--json", url=url).records)
    assert "Schedule report is removed.\n" == succeed("schedule", "remove", "report", url=url).out
    assert 3 == run("schedule", "list", url=url).exit_code
    assert 3 == run("peek", "mails", url=url).exit_code


def test_add_sets_every_option(sqlite_url: str) -> None:
    """Each option arrives in the schedule."""
    succeed("create", "jobs", "--priorities", "3", "--column", "tenant:string(40)", url=sqlite_url)
    succeed(
        *("schedule", "add", "s", "jobs", "[1]", "--every", "1m30s", "--missed", "all"),
        *("--kind", "k", "--header", "a=1", "--priority", "2", "--delay", "5s"),
        *("--max-attempts", "7", "--lease", "2m", "--column", "tenant=acme"),
        url=sqlite_url,
    )
    with QueueService(sqlite_url) as service:
        schedule = service.schedules.get("s")
    assert [1] == schedule.payload
    assert timedelta(seconds=90) == schedule.every
    assert "all" == schedule.missed
    assert {
        "kind": "k",
        "headers": {"a": 1},
        "priority": 2,
        "delay": timedelta(seconds=5),
        "max_attempts": 7,
        "lease": timedelta(minutes=2),
        "tenant": "acme",
    } == dict(schedule.options)


def test_show_tells_the_next_instants(jobs: Queue, sqlite_url: str) -> None:
    """In UTC and by the schedule's own clocks; --json has all of the schedule, too."""
    succeed("schedule", "add", "s", jobs.name, "1", *DAILY, url=sqlite_url)
    shown = succeed("schedule", "show", "s", url=sqlite_url).out
    assert "30 6 * * 1-5 Europe/Zagreb" in shown
    assert 5 == shown.count("06:30:00")
    record = succeed("schedule", "show", "s", "--count", "2", "--json", url=sqlite_url).record
    assert 2 == len(record["upcoming"])
    assert record["next_at"] == record["upcoming"][0]
    assert datetime.fromisoformat(record["next_at"]).tzinfo is not None


def test_list_shows_a_table(jobs: Queue, sqlite_url: str) -> None:
    """One line for each, with what is paused marked so."""
    succeed("schedule", "add", "b", jobs.name, '"x"', "--every", "90", url=sqlite_url)
    succeed("schedule", "add", "a", jobs.name, "{}", "--cron", "@daily", url=sqlite_url)
    succeed("schedule", "pause", "b", url=sqlite_url)
    header, first, second = succeed("schedule", "list", url=sqlite_url).out.splitlines()
    assert ["name", "queue", "when", "next", "(UTC)"] == header.split()
    assert ["a", "jobs", "@daily"] == first.split()[:3]
    assert ["b", "jobs", "every", "1m30s", "paused"] == second.split()


@pytest.mark.engines("sqlite")
def test_list_fits_a_terminal_of_80_columns(service: QueueService) -> None:
    """The longest names leave room for the next instant, and for the word of a paused one."""
    jobs = service.create_queue("q" * 40)
    zone = "America/Argentina/Buenos_Aires"
    long = service.schedules.add("n" * 150, jobs, {}, cron="0 8-18/2 1,15 * 1-5", timezone=zone)
    table = build_table(None, COLUMNS, [_listed(long)], width=80)
    console = Console(width=80, file=io.StringIO())
    _, row = ("".join(s.text for s in line) for line in console.render_lines(table))
    assert row.rstrip().endswith(f"{long.next_at:%Y-%m-%d %H:%M:%S}")


def test_show_tells_the_options(jobs: Queue, sqlite_url: str) -> None:
    """What each message gets is there for a person, too: a delay moves it from its instant."""
    options = ("--every", "60", "--delay", "90m", "--kind", "k", "--header", "a=1")
    succeed("schedule", "add", "s", jobs.name, '{"x": 1}', *options, url=sqlite_url)
    lines = succeed("schedule", "show", "s", url=sqlite_url).out.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines if line.split()[1:])
    assert "1h30m" == shown["delay"]
    assert "k" == shown["kind"]
    assert '{"a":1}' == shown["headers"]
    assert '{"x":1}' == shown["payload"]
    assert "one" == shown["missed"]


def test_add_says_that_the_schedule_is_paused(jobs: Queue, sqlite_url: str) -> None:
    """A change leaves it paused; who changed it learns how to let it go on."""
    succeed("schedule", "add", "s", jobs.name, "1", *DAILY, url=sqlite_url)
    succeed("schedule", "pause", "s", url=sqlite_url)
    changed = succeed("schedule", "add", "s", jobs.name, "2", *DAILY, url=sqlite_url).out
    assert "but is paused: queue-over-sql schedule resume s" in changed


def test_text_needs_no_quotes(sqlite_url: str) -> None:
    """For a queue of text or bytes the argument is the payload itself."""
    expected = {"text": ("zwölf", None), "bytes": ("enfDtmxm", "base64")}
    for payload_type, shown in expected.items():
        succeed("create", payload_type, "--payload", payload_type, url=sqlite_url)
        succeed("schedule", "add", "s", payload_type, "zwölf", "--every", "60", url=sqlite_url)
        record = succeed("schedule", "show", "s", "--json", url=sqlite_url).record
        assert shown == (record["payload"], record.get("payload_encoding")), payload_type
        succeed("schedule", "remove", "s", url=sqlite_url)


def test_wrong_usage(jobs: Queue, sqlite_url: str) -> None:
    """Exit code 2, and a message that names what is wrong."""
    assert "jobs" == jobs.name
    wrong = {
        ("1",): "cron",
        ("1", "--every", "60", "--cron", "@daily"): "cron",
        ("1", "--cron", "* * *"): "five fields",
        ("1", "--cron", "0 0 30 2 *"): "never matches",
        ("1", "--every", "10ms"): "every",
        ("1", "--cron", "@daily", "--timezone", "Mars"): "timezone",
        ("1", "--every", "60", "--missed", "some"): "missed",
        ("nonsense", "--every", "60"): "JSON",
        ("1", "--every", "60", "--column", "tenant=x"): "tenant",
    }
    for arguments, named in wrong.items():
        ended = run("schedule", "add", "s", "jobs", *arguments, url=sqlite_url)
        assert 2 == ended.exit_code, arguments
        assert "" == ended.out, arguments
        assert named in " ".join(ended.err.split()), arguments


def test_a_schedule_that_is_not_there(jobs: Queue, sqlite_url: str) -> None:
    """Exit code 3, and its name."""
    assert "jobs" == jobs.name
    for verb in ("show", "pause", "resume", "remove"):
        ended = run("schedule", verb, "nothing", url=sqlite_url)
        assert 3 == ended.exit_code, verb
        assert "'nothing'" in ended.err, verb
    nowhere = run("schedule", "add", "s", "nowhere", "1", "--every", "1", url=sqlite_url)
    assert 3 == nowhere.exit_code


def test_the_reaper_fires(jobs: Queue, sqlite_url: str, tmp_path: Path) -> None:
    """The daemon publishes what schedules ask for; without it there is only what lies ahead."""
    succeed("schedule", "add", "s", jobs.name, "1", "--every", "250ms", url=sqlite_url)
    ahead = jobs.messages().count()
    assert ahead <= 5 * 4 + 1
    with started("reaper", "--interval", "100ms", url=sqlite_url, log=tmp_path / "log"):
        eventually(lambda: jobs.messages().count() > ahead, "more messages than lay ahead")
