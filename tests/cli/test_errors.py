"""Errors: an exit code for scripts and one message for people, without tracebacks and passwords."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from queue_over_sql.testing.plugin import TestDatabase
from queue_over_sql.values.texts import hide_passwords
from tests.cli.command_line import command, environment, run, succeed


def test_without_a_url_the_error_says_how_to_give_one() -> None:
    """Exit code 2, with the option, the variable and examples."""
    ended = run("list")
    assert 2 == ended.exit_code
    assert "" == ended.out
    assert "--url" in ended.err
    assert "QUEUE_OVER_SQL_URL" in ended.err


def test_a_url_that_is_none_is_explained() -> None:
    """Text that is no URL, and an unknown engine: an error in words."""
    for url in ("not a url", "nosuchengine://host/db"):
        ended = run("list", url=url)
        assert ended.exit_code in {1, 2}
        assert "Traceback" not in ended.err
        assert ended.err.strip()


def test_an_unknown_queue_is_code_3(sqlite_url: str) -> None:
    """The message names the queue; nothing is on standard output."""
    for arguments in (
        ("consume", "none"),
        ("publish", "none", "1"),
        ("stats", "none"),
        ("drop", "none", "--yes"),
    ):
        ended = run(*arguments, url=sqlite_url)
        assert 3 == ended.exit_code, arguments
        assert "" == ended.out, arguments
        assert "none" in ended.err, arguments
        assert "Traceback" not in ended.err, arguments


def test_advice_is_something_to_type(sqlite_url: str) -> None:
    """What is unknown and a taken key are answered with a command and options, not Python."""
    missing = run("consume", "none", url=sqlite_url)
    no_topic = run("subscribe", "none", "jobs", url=sqlite_url)
    refused = run("publish", "Emails", "1", url=sqlite_url)
    no_schedule = run("schedule", "show", "none", url=sqlite_url)
    succeed("create", "jobs", url=sqlite_url)
    succeed("publish", "jobs", "1", "--key", "k", url=sqlite_url)
    taken = run("publish", "jobs", "2", "--key", "k", url=sqlite_url)
    assert "create it with: queue-over-sql create none" in missing.err
    assert "--on-conflict skip to keep it or 'replace'" in taken.err
    assert "service.create_queue" not in missing.err
    assert "on_conflict=" not in taken.err
    assert "create it with: queue-over-sql create emails\n" in refused.err
    mistyped = run("stats", "Job", url=sqlite_url)
    assert "did you mean 'jobs'? If not, create it with: queue-over-sql create job" in mistyped.err
    assert "create it with: queue-over-sql topic create none" in no_topic.err
    assert "queue-over-sql schedule list" in no_schedule.err
    assert "service." not in no_topic.err + no_schedule.err


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_an_unreachable_server_is_code_4_and_hides_the_password(scheme: str) -> None:
    """The host is in the message, the password is not."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    ended = run("list", url=f"{scheme}://someone:s3cret-pw@127.0.0.1:{port}/db")
    assert 4 == ended.exit_code
    assert "s3cret-pw" not in ended.err + ended.out
    assert "Traceback" not in ended.err
    assert "127.0.0.1" in ended.err


def test_a_file_that_cannot_be_opened_is_an_error_in_words(tmp_path: Path) -> None:
    """A SQLite file in a folder that is not there."""
    ended = run("create", "jobs", "--create", url=f"sqlite:///{tmp_path / 'missing' / 'queues.db'}")
    assert ended.exit_code in {1, 4}
    assert "Traceback" not in ended.err


def test_only_what_creates_makes_the_file_of_a_database(tmp_path: Path) -> None:
    """A path that is mistyped is told, with what to do, and no empty database is left there."""
    file = tmp_path / "typo.db"
    for arguments in (
        "list",
        "publish jobs 1",
        "consume jobs",
        "adopt jobs orders",
        "stats --watch",
        "topic list",
        "schedule list",
        "archive prune jobs",
        "reaper",
        "create jobs",
        "topic create news",
    ):
        ended = run(*arguments.split(), url=f"sqlite:///{file}")
        assert 4 == ended.exit_code, arguments
        assert str(file) in ended.err, arguments
        assert "queue-over-sql create" in ended.err, arguments
        assert not file.exists(), arguments
    for number, create in enumerate(("create jobs", "topic create news")):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        succeed(*create.split(), "--create", url=url)
        assert run("list", url=url).exit_code in {0, 3}, create


@pytest.mark.engines("h2")
def test_the_file_of_h2_is_not_made_by_looking_either(
    database: TestDatabase, tmp_path: Path
) -> None:
    """An embedded database, whose file has a name of H2's."""
    del database  # It says that H2 is there.
    url = f"h2:///{tmp_path / 'queues'}"
    ended = run("list", url=url)
    assert 4 == ended.exit_code
    assert str(tmp_path / "queues.mv.db") in ended.err
    assert [] == list(tmp_path.iterdir())
    succeed("create", "jobs", "--create", url=url)
    assert ["jobs"] == [record["queue"] for record in succeed("list", "--json", url=url).records]


def test_arguments_that_the_library_refuses_are_wrong_usage(sqlite_url: str) -> None:
    """Code 2, and the name of the option: the name of a Python argument helps nobody here."""
    succeed("create", "jobs", url=sqlite_url)
    for arguments, told in (
        ("publish jobs 1 --priority 5", "--priority must be"),
        ("publish jobs 1 --on-conflict mabye", "--on-conflict must be one of"),
        ("publish jobs 1 --column tenant=a", "tenant"),
        ("publish jobs 1 --delay 1s --at 2030-01-01T00:00:00Z", "use --delay or --at, not both"),
        ("schedule add a jobs 1", "give either --cron, such as"),
        ("create jobs --archive som", "--archive must be one of"),
        ("create jobs --max-payload-bytes 9999999999", "--max-payload-bytes must be at most"),
    ):
        ended = run(*arguments.split(), url=sqlite_url)
        assert 2 == ended.exit_code, (arguments, ended.err)
        assert told in ended.err, (arguments, ended.err)


def test_passwords_are_hidden_in_any_text() -> None:
    """Whatever a driver writes into its error, the password of a URL never gets out."""
    shown = {
        "postgresql://u:pw@h/db": "postgresql://u:***@h/db",
        "at mysql+pymysql://u:p%40w:x@h:1/db now": "at mysql+pymysql://u:***@h:1/db now",
        "jdbc:h2:tcp://h;USER=sa;PASSWORD=pw;X=1": "jdbc:h2:tcp://h;USER=sa;PASSWORD=***;X=1",
        "postgresql://h/db?user=u&password=pw": "postgresql://h/db?user=u&password=***",
        "sqlite:////tmp/a:b@c.db": "sqlite:////tmp/a:b@c.db",
        "postgresql://u:p@w/x@h/db, mysql://u@h/d": "postgresql://u:***@h/db, mysql://u@h/d",
        '["postgresql://u:p/w@h/db","mysql://v:x@i/d"]': (
            '["postgresql://u:***@h/db","mysql://v:***@i/d"]'
        ),
        "nothing to hide": "nothing to hide",
    }
    assert shown == {text: hide_passwords(text) for text in shown}


def _with_streams(streams: str, *arguments: str, url: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", *command(*arguments)],
        capture_output=True,
        env=environment(QUEUE_OVER_SQL_URL=url),
        check=False,
        timeout=60,
    )


def test_closed_streams_are_told_before_anything_is_done(sqlite_url: str, tmp_path: Path) -> None:
    """A command needs its standard output, and `publish` of lines its input: exit code 2."""
    succeed("create", "jobs", url=sqlite_url)
    file = tmp_path / "lines"
    file.write_text("2\n")
    for streams, reason, *arguments in (
        ("<&-", b"standard input is closed", "publish", "jobs"),
        ("<&-", b"", "publish", "jobs", "1"),
        ("<&-", b"", "publish", "jobs", "--file", str(file)),
        (">&-", b"standard output is closed", "stats", "jobs"),
        (">&-", b"standard output is closed", "publish", "jobs", "3"),
        (">&-", b"standard output is closed", "consume", "jobs"),
        ("2>&-", b"", "purge", "jobs"),
    ):
        ended = _with_streams(streams, *arguments, url=sqlite_url)
        told = (ended.returncode, reason in ended.stderr, b"Traceback" in ended.stderr)
        expected = 2 if reason else int(arguments[0] == "purge")
        assert (expected, True, False) == told, (streams, arguments, ended.stderr)
    assert "1\n2\n" == succeed("consume", "jobs", url=sqlite_url).out


def test_a_reader_that_leaves_ends_a_command_as_sigpipe_does(sqlite_url: str) -> None:
    """Exit code 141 and no word, for what writes lines and for what writes a sentence."""
    succeed("create", "jobs", url=sqlite_url)
    read_end, write_end = os.pipe()
    os.close(read_end)
    for arguments in (("stats", "jobs"), ("stats", "jobs", "--json"), ("publish", "jobs", "1")):
        ended = subprocess.run(
            command(*arguments),
            stdout=write_end,
            stderr=subprocess.PIPE,
            env=environment(QUEUE_OVER_SQL_URL=sqlite_url),
            check=False,
            timeout=60,
        )
        assert 141 == ended.returncode, arguments
        assert b"" == ended.stderr, arguments
    os.close(write_end)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it is a device of Linux")
def test_output_that_cannot_be_written_is_told_once(sqlite_url: str) -> None:
    """A full disk, say: exit code 1 and the reason."""
    succeed("create", "jobs", url=sqlite_url)
    ended = _with_streams(">/dev/full", "stats", "jobs", url=sqlite_url)
    assert 1 == ended.returncode, ended.stderr
    assert 1 == len(ended.stderr.splitlines()), ended.stderr
