"""`serve`: the dashboard and the HTTP API until a signal, and its refusals."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import httpx2

from queue_over_sql import Queue
from tests.cli.command_line import run, started, succeed
from tests.waiting import wait_until


def address_in(log: Path) -> str | None:
    """Where the server says that it listens."""
    found = re.search(r"dashboard is at (http://[0-9.:]+)", log.read_text())
    return found and found[1]


def test_it_serves_pages_and_the_api_until_a_signal(
    sqlite_url: str, jobs: Queue, tmp_path: Path
) -> None:
    """To whoever is at this machine, as long as there is no token; it is no consumer."""
    jobs.publish({"n": 1})
    log = tmp_path / "serve.log"
    with started("serve", "--http", "0", "--title", "staging", url=sqlite_url, log=log) as process:
        wait_until(lambda: process.poll() is not None or address_in(log) is not None)
        root = address_in(log)
        assert root is not None, log.read_text()
        page = httpx2.get(root, trust_env=False)
        assert 200 == page.status_code
        assert "staging" in page.text
        queues = httpx2.get(f"{root}/api/v1/queues", trust_env=False).json()["queues"]
        assert ["jobs"] == [queue["name"] for queue in queues]
        consumers = httpx2.get(f"{root}/api/v1/consumers", trust_env=False).json()["consumers"]
        assert "serve" not in {each["name"] for each in consumers}
        for probe in ("--live", "--ready"):
            succeed("health", probe, "--http", root.removeprefix("http://"), url=sqlite_url)
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30), log.read_text()


def test_nobody_comes_in_without_a_token_where_there_is_one(
    sqlite_url: str, jobs: Queue, tmp_path: Path
) -> None:
    """Also on this machine; the token opens pages and the API."""
    assert "jobs" == jobs.name
    token = succeed("token", "add", "ada", "--role", "viewer", url=sqlite_url).out.strip()
    log = tmp_path / "serve.log"
    with started("serve", "--http", "0", url=sqlite_url, log=log) as process:
        wait_until(lambda: process.poll() is not None or address_in(log) is not None)
        root = address_in(log)
        assert root is not None, log.read_text()
        assert "/sign-in" in httpx2.get(root, trust_env=False).headers["location"]
        assert 401 == httpx2.get(f"{root}/api/v1/queues", trust_env=False).status_code
        headers = {"authorization": f"Bearer {token}"}
        answer = httpx2.get(f"{root}/api/v1/queues", headers=headers, trust_env=False)
        assert 200 == answer.status_code


def test_others_are_not_served_without_a_token(sqlite_url: str, jobs: Queue) -> None:
    """The error says how to make one."""
    assert "jobs" == jobs.name
    ended = run("serve", "--http", "0.0.0.0:0", url=sqlite_url)
    assert 2 == ended.exit_code
    assert "token add" in ended.err
