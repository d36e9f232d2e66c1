"""`archive`: finished messages are exported, pruned by settings, or removed by filters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queue_over_sql import Publication, Queue
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from tests.cli.command_line import on_terminal, run, succeed
from tests.contract.queue_state import finished

pytestmark = pytest.mark.default_on("sqlite", "postgresql")


def _finish(queue: Queue, *payloads: str) -> None:
    """One message of each payload, which is its kind, too: rejected."""
    queue.publish_many([Publication(payload, kind=payload) for payload in payloads])
    finished(queue, "rejected", len(payloads))


def test_export_writes_what_peek_shows(
    database: TestDatabase, make_service: MakeService, tmp_path: Path
) -> None:
    """JSON Lines with all fields, to a file and to standard output, by filters, on every engine."""
    queue = make_service().create_queue("jobs")
    _finish(queue, "Žižkov", "b", "c")
    file = tmp_path / "rejected.jsonl"
    chosen = ("--status", "rejected", "--where", "kind <> 'b'")
    done = succeed("archive", "export", "jobs", str(file), *chosen, "--json", url=database.url)
    assert {"queue": "jobs", "file": str(file), "exported": 2} == done.record
    shown = succeed("search", "jobs", "--archive", *chosen, "--json", url=database.url).out
    assert shown == file.read_text("utf-8")
    piped = succeed("archive", "export", "jobs", "-", *chosen, url=database.url)
    assert shown == piped.out
    assert "Exported 2 messages from the archive of queue jobs.\n" == piped.err


def test_an_empty_archive_is_exported_too(sqlite_url: str, tmp_path: Path) -> None:
    """A backup of nothing is an empty file, not an error."""
    succeed("create", "jobs", url=sqlite_url)
    file = tmp_path / "empty.jsonl"
    succeed("archive", "export", "jobs", str(file), url=sqlite_url)
    assert "" == file.read_text()
    assert "" == succeed("archive", "export", "jobs", "-", url=sqlite_url).out


def test_many_pages_go_to_standard_output(sqlite_url: str, jobs: Queue) -> None:
    """All of them, once each, by id."""
    jobs.load(range(2500))
    finished(jobs, "rejected", 2500)
    lines = succeed("archive", "export", "jobs", "-", url=sqlite_url).out.splitlines()
    assert [*range(2500)] == [json.loads(line)["payload"] for line in lines]


def test_a_file_that_cannot_be_written_is_named(
    sqlite_url: str, jobs: Queue, tmp_path: Path
) -> None:
    """A folder that is missing, and one in place of the file: code 1, one message, no leftovers."""
    _finish(jobs, "a")
    before = sorted(tmp_path.iterdir())
    for file in (tmp_path / "missing" / "out.jsonl", tmp_path):
        ended = run("archive", "export", "jobs", str(file), url=sqlite_url)
        assert 1 == ended.exit_code
        assert "" == ended.out
        assert ended.err.startswith(f"Error: {file} cannot be written: ")
    assert before == sorted(tmp_path.iterdir())


def test_exported_messages_can_be_published_again(sqlite_url: str, jobs: Queue) -> None:
    """What export writes is what publish --format message reads, with the groups."""
    succeed("create", "jobs", "--group-limit", "1", url=sqlite_url)
    jobs.refresh()
    jobs.publish_many([Publication(kind, kind=kind, group=f"{kind} ") for kind in "ab"])
    finished(jobs, "rejected", 2)
    lines = succeed("archive", "export", "jobs", "-", url=sqlite_url).out
    succeed("publish", "jobs", "--format", "message", url=sqlite_url, stdin=lines)
    found = [(message.kind, message.group) for message in jobs.messages().list()]
    assert [("a", "a "), ("b", "b ")] == found


def test_export_shows_how_far_it_is(sqlite_url: str, jobs: Queue, tmp_path: Path) -> None:
    """On a terminal there is a bar that ends at the number of messages."""
    jobs.load(range(1200))
    finished(jobs, "rejected", 1200)
    file = str(tmp_path / "all.jsonl")
    code, shown = on_terminal("archive", "export", "jobs", file, url=sqlite_url)
    assert 0 == code
    assert "1200/1200" in shown
    assert "Exported 1,200 messages" in shown


def test_prune_does_what_the_settings_say(
    database: TestDatabase, make_service: MakeService
) -> None:
    """What the limit does not keep goes at once, the oldest first, without a running service."""
    queue = make_service().create_queue("jobs", archive_limit={"rejected": 2})
    _finish(queue, "a", "b", "c", "d")
    pruned = succeed("archive", "prune", "jobs", "--json", url=database.url).record
    assert {"queue": "jobs", "pruned": 2} == pruned
    assert ["c", "d"] == [message.kind for message in queue.archive.messages().list()]
    again = succeed("archive", "prune", "jobs", url=database.url)
    assert "Pruned 0 messages from the archive of queue jobs.\n" == again.out


def test_prune_goes_on_until_nothing_is_left(sqlite_url: str, jobs: Queue) -> None:
    """More than one pass of a reaper would take."""
    jobs.load(range(12_000))
    while messages := jobs.consume(3000):
        jobs.reject(messages, "no good")
    succeed("create", "jobs", "--archive-limit", "rejected=0", url=sqlite_url)
    pruned = succeed("archive", "prune", "jobs", "--json", url=sqlite_url).record
    assert 12_000 == pruned["pruned"]
    assert 0 == jobs.stats().archived


def test_remove_by_filters(database: TestDatabase, make_service: MakeService) -> None:
    """Only what matches goes; it says how many, and asks."""
    queue = make_service().create_queue("jobs")
    _finish(queue, "a", "b", "b")
    remove = ("archive", "remove", "jobs", "--status", "rejected", "--kind", "b")
    refused = run(*remove, url=database.url, stdin="n\n")
    assert 1 == refused.exit_code
    assert "Remove 2 messages from the archive of queue jobs permanently?" in refused.err
    assert 3 == queue.stats().archived
    removed = succeed(*remove, "--yes", "--json", url=database.url).record
    assert {"queue": "jobs", "removed": 2} == removed
    assert ["a"] == [message.kind for message in queue.archive.messages().list()]
    nothing = run(*remove, url=database.url)
    assert 3 == nothing.exit_code
    assert "" == nothing.out


def test_remove_insists_on_a_clear_choice(sqlite_url: str, jobs: Queue) -> None:
    """No filter and no --all, both, or a status that the archive does not have: code 2."""
    _finish(jobs, "a")
    wrong: list[tuple[str, ...]] = [(), ("--all", "--kind", "a"), ("--status", "ready")]
    for options in wrong:
        ended = run("archive", "remove", "jobs", *options, "--yes", url=sqlite_url)
        assert 2 == ended.exit_code, options
        assert 1 == jobs.stats().archived, options


def test_removing_many_shows_how_far_it_is(sqlite_url: str, jobs: Queue) -> None:
    """On a terminal there is a bar that ends at the number of messages."""
    jobs.load(range(1200))
    finished(jobs, "rejected", 1200)
    code, shown = on_terminal("archive", "remove", "jobs", "--all", "--yes", url=sqlite_url)
    assert 0 == code
    assert "1200/1200" in shown
    assert "Removed 1,200 messages" in shown


def test_an_unknown_queue_is_code_3(sqlite_url: str, tmp_path: Path) -> None:
    """As with every other command; nothing is on standard output, and there is no file."""
    file = tmp_path / "out.jsonl"
    commands = (("export", "none", str(file)), ("prune", "none"), ("remove", "none", "--all"))
    for arguments in commands:
        ended = run("archive", *arguments, url=sqlite_url)
        assert 3 == ended.exit_code, arguments
        assert "" == ended.out, arguments
        assert not file.exists(), arguments
