"""`health` and `doctor`: their output and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_over_sql import Queue, QueueService
from queue_over_sql.observability import Health, ProbeServer
from tests.cli.command_line import run, succeed


@pytest.fixture
def started(sqlite_url: str) -> Iterator[QueueService]:
    """A consumer of the database that is alive."""
    with QueueService(sqlite_url) as service:
        yield service


def test_health_is_an_exit_code(sqlite_url: str, jobs: Queue) -> None:
    """1 while nobody consumes, 0 then; each check is a line, or all of them one JSON line."""
    jobs.publish(1)
    ended = run("health", url=sqlite_url)
    assert 1 == ended.exit_code
    assert "none is alive: start a worker" in ended.out
    with QueueService(sqlite_url):
        ended = run("health", "--json", url=sqlite_url)
        well = run("health", "--max-age", "1h", url=sqlite_url)
        late = run("health", "--max-age", "1us", url=sqlite_url)
    assert 0 == ended.exit_code
    assert ended.record["ok"] is True
    assert {"name": "database", "ok": True, "text": "it answers"} == ended.record["checks"][0]
    assert 0 == well.exit_code
    assert 5 == len(well.out.splitlines())
    assert 1 == late.exit_code
    assert "failed  queue jobs" in late.out


def test_health_of_no_database_is_a_finding(tmp_path: Path) -> None:
    """Neither another exit code nor a traceback, and no file is made."""
    ended = run("health", "--json", url=f"sqlite:///{tmp_path / 'none.db'}")
    assert 1 == ended.exit_code
    assert "database" == ended.record["checks"][0]["name"]
    assert [] == list(tmp_path.iterdir())


def test_health_of_a_process_needs_no_database(started: QueueService) -> None:
    """It asks where the process answers; 1 when it is not well, or not there."""
    with ProbeServer(Health(started), "0") as server:
        for option in ("--live", "--ready"):
            ended = run("health", option, "--http", server.address, "--json")
            assert 0 == ended.exit_code
            assert ended.record["ok"] is True
        started.stop()
        assert 0 == run("health", "--live", "--http", server.address).exit_code
        ended = run("health", "--ready", "--http", server.address)
        assert 1 == ended.exit_code
        assert "failed  service  it was stopped\n" == ended.out
    ended = run("health", "--live", "--http", server.address)
    assert 1 == ended.exit_code
    assert "nothing answers /livez" in ended.out
    assert f"Start the worker, the reaper or serve with --http {server.address}" in ended.out


def test_wrong_usage(sqlite_url: str) -> None:
    """Exit code 2, before anything is asked."""
    for arguments in (
        ("health", "--live", "--ready"),
        ("health", "--live", "--http", "nowhere"),
        ("health", "--timeout", "0"),
        ("doctor", "--timeout", "0"),
        ("health",),
        ("reaper", "--http", "nowhere"),
    ):
        url = None if arguments == ("health",) else sqlite_url
        assert 2 == run(*arguments, url=url).exit_code, arguments


def test_doctor_says_what_to_do(sqlite_url: str, jobs: Queue, tmp_path: Path) -> None:
    """0 unless there is an error; each finding is a line, or a JSON line."""
    assert "jobs" == jobs.name
    ended = succeed("doctor", url=sqlite_url)
    assert "No problems found." == ended.err.strip()
    assert "ok       engine" in ended.out
    records = succeed("doctor", "--json", url=sqlite_url).records
    assert {"level", "about", "text", "advice"} == set(records[0])
    empty = tmp_path / "empty.db"
    empty.touch()
    ended = run("doctor", url=f"sqlite:///{empty}")
    assert 1 == ended.exit_code
    assert "-> Create a queue" in ended.out
    assert 4 == run("doctor", url=f"sqlite:///{tmp_path / 'none.db'}").exit_code


def test_json_of_a_process_is_what_it_answers(started: QueueService) -> None:
    """Its checks by name."""
    with ProbeServer(Health(started), "0") as server:
        ended = run("health", "--ready", "--http", server.address, "--json")
    names = [check["name"] for check in json.loads(ended.out)["checks"]]
    assert ["heartbeat", "database"] == names
