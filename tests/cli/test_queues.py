"""Commands that create, list and manage queues."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect

from queue_over_sql import ExponentialBackoff, FixedDelay, QueueService
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import run, succeed

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


@pytest.mark.default_on("sqlite", "postgresql", "mysql", "mariadb", "h2")
def test_create_list_pause_resume_drop(database: TestDatabase) -> None:
    """The life of a queue, by commands alone, on every engine."""
    succeed("create", "emails", url=database.url)
    assert ["emails"] == [r["queue"] for r in succeed("list", "--json", url=database.url).records]
    succeed("publish", "emails", "1", url=database.url)
    succeed("pause", "emails", url=database.url)
    assert [True] == [r["paused"] for r in succeed("list", "--json", url=database.url).records]
    consumed = run("consume", "emails", url=database.url)
    assert 3 == consumed.exit_code
    assert "Queue emails is paused.\n" == consumed.err
    succeed("resume", "emails", url=database.url)
    assert "1\n" == succeed("consume", "emails", url=database.url).out
    succeed("drop", "emails", "--yes", url=database.url)
    assert 3 == run("list", url=database.url).exit_code


def test_create_sets_every_setting(sqlite_url: str) -> None:
    """Each option of create arrives in the queue's settings."""
    succeed(
        "create",
        "jobs",
        *("--lease", "2m", "--max-attempts", "7", "--retry", "fixed:30s"),
        *("--payload", "text", "--priorities", "3", "--archive", "all", "--archive-ttl", "7d"),
        *("--max-payload-bytes", "1000", "--column", "tenant:string(40):index"),
        *("--expires", "2h", "--group-limit", "3", "--group-order", "any"),
        url=sqlite_url,
    )
    with QueueService(sqlite_url) as service:
        settings = service.queue("jobs").settings
        columns = [column.name for column in settings.columns]
    assert 120 == settings.lease.total_seconds()
    assert 7 == settings.max_attempts
    assert FixedDelay(30.0) == settings.retry
    assert "text" == settings.payload
    assert 3 == settings.priorities
    assert "all" == settings.archive
    assert timedelta(days=7) == settings.archive_ttl
    assert 1000 == settings.max_payload_bytes
    assert timedelta(hours=2) == settings.expires
    assert (3, "any") == (settings.group_limit, settings.group_order)
    assert ["tenant"] == columns
    [listed] = succeed("list", "--json", url=sqlite_url).records
    assert (3, "any", ["tenant"]) == tuple(
        listed[name] for name in ("group_limit", "group_order", "columns")
    )
    assert "groups of 3, any order" in succeed("list", url=sqlite_url).out
    off = succeed("create", "jobs", "--group-limit", "none", "--json", url=sqlite_url)
    assert off.record["group_limit"] is None
    fair = succeed("create", "jobs", "--group-fair", "yes", "--json", url=sqlite_url)
    assert fair.record["group_fair"] is True
    assert "groups of any size, any order, fair" in succeed("list", url=sqlite_url).out
    full = ("--queue-limit", "20", "--queue-rate", "5/s", "--when-full", "reject")
    limited = succeed("create", "jobs", *full, "--json", url=sqlite_url)
    assert (20, "reject") == (limited.record["queue_limit"], limited.record["when_full"])
    assert "5/s" == limited.record["queue_rate"]
    assert "in hand 20; rate 5/s; when full reject" in succeed("list", url=sqlite_url).out
    ages = ("--warn-age", "5m", "--critical-age", "1h")
    assert 3600 == succeed("create", "jobs", *ages, "--json", url=sqlite_url).record["critical_age"]
    assert "warn after 5m; critical 1h" in succeed("list", url=sqlite_url).out
    assert 2 == run("create", "jobs", "--warn-age", "2h", url=sqlite_url).exit_code


def test_create_again_changes_only_what_is_given(sqlite_url: str) -> None:
    """A second create keeps the settings that it does not name; forever ends a time limit."""
    succeed("create", "jobs", "--max-attempts", "7", "--archive-ttl", "1h", url=sqlite_url)
    again = succeed("create", "jobs", "--archive-ttl", "forever", "--json", url=sqlite_url)
    assert 7 == again.record["max_attempts"]
    assert again.record["archive_ttl"] is None


def test_the_archive_is_kept_by_outcome(sqlite_url: str) -> None:
    """A plain value holds for the outcomes that are not named; without one they have no bound."""
    ttl = ("--archive-ttl", "30d", "--archive-ttl", "done=1h", "--archive-ttl", "expired=forever")
    limit = ("--archive-limit", "failed=1000", "--archive-limit", "done=unlimited")
    record = succeed("create", "jobs", *ttl, *limit, "--json", url=sqlite_url).record
    assert {"done": 3600, "failed": 30 * 86400, "rejected": 30 * 86400} == record["archive_ttl"]
    assert {"failed": 1000} == record["archive_limit"]
    plain = ("--archive-limit", "50", "--archive-ttl", "forever")
    record = succeed("create", "jobs", *plain, "--json", url=sqlite_url).record
    assert record["archive_ttl"] is None
    assert 50 == record["archive_limit"]
    unlimited = ("--archive-limit", "unlimited")
    record = succeed("create", "jobs", *unlimited, "--json", url=sqlite_url).record
    assert record["archive_limit"] is None


def test_keys_and_kinds_may_wait(sqlite_url: str) -> None:
    """--dedup-window and --kind-timeout are set, listed, and taken back."""
    options = ("--dedup-window", "10m", "--kind-timeout", "2h", "--archive-ttl", "done=90m")
    record = succeed("create", "jobs", *options, "--json", url=sqlite_url).record
    assert 600 == record["dedup_window"]
    assert 7200 == record["kind_timeout"]
    listed = succeed("list", url=sqlite_url).out
    assert "kept done 1h30m; keys 10m; unknown kinds 2h" in listed
    back = ("--dedup-window", "none", "--kind-timeout", "1d", "--archive-ttl", "forever")
    record = succeed("create", "jobs", *back, "--json", url=sqlite_url).record
    assert record["dedup_window"] is None
    assert 86400 == record["kind_timeout"]
    assert "kept" not in succeed("list", url=sqlite_url).out


def test_create_refuses_another_payload_type(sqlite_url: str) -> None:
    """A queue that exists with another payload type is an error that names both."""
    succeed("create", "jobs", url=sqlite_url)
    ended = run("create", "jobs", "--payload", "bytes", url=sqlite_url)
    assert 1 == ended.exit_code
    assert "json" in ended.err
    assert "bytes" in ended.err


def test_retry_with_arguments(sqlite_url: str) -> None:
    """An exponential policy takes its arguments by name."""
    policy = "exponential:base=500ms,factor=3,maximum=1h,jitter=0"
    succeed("create", "jobs", "--retry", policy, url=sqlite_url)
    with QueueService(sqlite_url) as service:
        retry = service.queue("jobs").settings.retry
    assert ExponentialBackoff(base=0.5, factor=3.0, maximum=3600.0, jitter=0.0) == retry


@pytest.mark.timeout(300)
def test_create_explains_values_it_cannot_read(sqlite_url: str) -> None:
    """A wrong value is wrong usage, exit code 2, and makes no queue."""
    for option in (
        ("--retry", "sometimes"),
        ("--retry", "fixed:soon"),
        ("--retry", "exponential:speed=3"),
        ("--retry", "json:JSONDecoder"),
        ("--retry", "json:Nothing"),
        ("--lease", "long"),
        ("--lease", "0"),
        ("--column", "tenant"),
        ("--column", "tenant:varchar"),
        ("--payload", "xml"),
        ("--archive", "some"),
        ("--archive-ttl", "never"),
        ("--archive-ttl", "lost=1h"),
        ("--archive-ttl", "done=0"),
        ("--archive-limit", "done=many"),
        ("--dedup-window", "forever"),
        ("--kind-timeout", "never"),
        ("--max-attempts", "0"),
    ):
        ended = run("create", "jobs", *option, url=sqlite_url)
        assert 2 == ended.exit_code, option
        assert "" == ended.out, option
        assert "Traceback" not in ended.err, option
    assert 3 == run("list", url=sqlite_url).exit_code


def test_a_wrong_policy_names_its_option(sqlite_url: str) -> None:
    """The error names --retry, shows the right forms, and finds the word that was meant."""
    wrong = {
        "fixed:abc": "not a duration",
        "exponantial": "did you mean exponential",
        "Fixed:3s": "did you mean fixed",
        "delays:1s,x": "delays:1s,10s,1m",
    }
    for policy, said in wrong.items():
        ended = run("create", "jobs", "--retry", policy, url=sqlite_url, COLUMNS="1000")
        words = " ".join(ended.err.replace("│", " ").split())
        assert [True] * 3 == [part in words for part in ("--retry", "fixed:30s", said)], policy


def test_a_name_is_text_and_never_sql(sqlite_url: str) -> None:
    """Any text names a queue; what cannot ends with code 1 or 2 and an explanation."""
    for name in ('"; drop table x', "Emails", "ümlaut", "a" * 200, "x_archive"):
        succeed("create", name, url=sqlite_url)
        succeed("publish", name, "1", url=sqlite_url)
        assert "1" in succeed("peek", name, url=sqlite_url).out
    for name in ("", "a" * 256):
        ended = run("create", name, url=sqlite_url)
        assert ended.exit_code in {1, 2}, name
        assert "Traceback" not in ended.err


def test_list_for_people(sqlite_url: str) -> None:
    """Without --json the list is a table that names the queue and its settings."""
    succeed("create", "emails", "--lease", "90s", url=sqlite_url)
    out = succeed("list", url=sqlite_url).out
    assert "emails" in out
    assert "1m 30s" in out
    assert "ExponentialBackoff" in out
    succeed("pause", "emails", url=sqlite_url)
    assert "paused" not in out
    assert "paused" in succeed("list", url=sqlite_url).out


def test_a_pause_is_read_without_counting(sqlite_url: str) -> None:
    """Messages and archives may be large: list and consume read of them no more than they need."""
    succeed("create", "emails", url=sqlite_url)
    succeed("pause", "emails", url=sqlite_url)
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.execute("DROP TABLE queue_emails_archive")
    assert "paused" in succeed("list", url=sqlite_url).out
    assert succeed("list", "--json", url=sqlite_url).record["paused"]
    assert "Queue emails is paused.\n" == run("consume", "emails", url=sqlite_url).err


def test_purge_keeps_claimed_messages_unless_told(
    database: TestDatabase, make_service: MakeService
) -> None:
    """Purge removes what nobody holds; --claimed removes the rest, too. It asks with the number."""
    queue = make_service().create_queue("jobs")
    queue.publish_many([1, 2, 3])
    queue.consume()
    for number, options in (("2", ()), ("3", ("--claimed",))):
        asked = run("purge", "jobs", *options, url=database.url, stdin="n\n")
        assert f"Remove {number} messages from queue jobs permanently? [y/N]" in asked.err
    first = succeed("purge", "jobs", "--yes", "--json", url=database.url)
    second = succeed("purge", "jobs", "--yes", "--claimed", "--json", url=database.url)
    assert 2 == first.record["removed"]
    assert 1 == second.record["removed"]


def test_nothing_is_removed_without_a_yes(sqlite_url: str) -> None:
    """Asked on the terminal, anything but yes leaves everything as it was."""
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", "1", url=sqlite_url)
    for name, answer in (("drop", "n\n"), ("drop", ""), ("purge", "n\n"), ("purge", "")):
        assert 1 == run(name, "jobs", url=sqlite_url, stdin=answer).exit_code, (name, answer)
    assert 1 == succeed("stats", "jobs", "--json", url=sqlite_url).record["ready"]


def test_the_shell_completes_names_of_queues(sqlite_url: str, tmp_path: Path) -> None:
    """From the database that is given so far; without one nothing is said, and no file is made."""
    for name in ("jobs", "mails", "more"):
        succeed("create", name, url=sqlite_url)
    missing = tmp_path / "missing.db"
    for words, url, expected in (
        ("publish ", sqlite_url, ["jobs", "mails", "more"]),
        (f"--url {sqlite_url} show m", None, ["mails", "more"]),
        (f"peek --url {sqlite_url} j", None, ["jobs"]),
        ("publish ", f"sqlite:///{missing}", []),
    ):
        asked: dict[str, Any] = {
            "_QUEUE_OVER_SQL_COMPLETE": "complete_bash",
            "COMP_WORDS": f"queue-over-sql {words}",
            "COMP_CWORD": str(words.count(" ") + 1),
        }
        ended = run(url=url, **asked)
        assert 0 == ended.exit_code, words
        assert expected == ended.out.split(), words
        assert "" == ended.err, words
    assert not missing.exists()


def test_yes_on_standard_input_drops(sqlite_url: str) -> None:
    """A yes is enough."""
    succeed("create", "jobs", url=sqlite_url)
    succeed("drop", "jobs", url=sqlite_url, stdin="y\n")
    assert 3 == run("stats", "jobs", url=sqlite_url).exit_code


def test_prefix_and_url_before_and_after_the_name(sqlite_url: str) -> None:
    """Shared options count on either side of the command, and the prefix names the tables."""
    assert 0 == run("--url", sqlite_url, "create", "a", "--table-prefix", "q_").exit_code
    listed = run("--table-prefix", "q_", "list", "--url", sqlite_url, "--json")
    tables = inspect(create_engine(sqlite_url)).get_table_names()
    assert ["a"] == [record["queue"] for record in listed.records]
    assert "q_a" in tables
    assert "queue_a" not in tables
