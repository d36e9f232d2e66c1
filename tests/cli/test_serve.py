"""`serve`: the dashboard and the HTTP API until a signal, and its refusals."""

from __future__ import annotations

import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from queue_over_sql import Queue, QueueService
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


def test_behind_a_proxy(sqlite_url: str, jobs: Queue, tmp_path: Path) -> None:
    """Two servers with one secret take each other's forms; other sites are answered if listed."""
    assert "jobs" == jobs.name
    options = ["--proxy-header", "X-User", "--proxy-from", "127.0.0.1"]
    options += ["--proxy-role-header", "X-Role", "--secret", "a long one"]
    options += ["--origins", "https://queues.example.org"]
    options += ["--cors-origins", "https://shop.example.org"]
    user = {"X-User": "ada", "X-Role": "operator"}
    roots, logs = [], [tmp_path / name for name in ("one.log", "two.log")]
    with ExitStack() as stack:
        for log in logs:
            command = ("serve", "--http", "0", *options)
            process = stack.enter_context(started(*command, url=sqlite_url, log=log))
            wait_until(lambda: process.poll() is not None or address_in(log) is not None)  # noqa: B023 - at once
            roots.append(address_in(log))
        me = httpx2.get(f"{roots[0]}/api/v1/me", headers=user, trust_env=False).json()
        assert "operator" == me["role"]
        form = {"Origin": "https://queues.example.org", "Sec-Fetch-Site": "same-origin"}
        form |= {**user, "X-CSRF-Token": me["csrf"]}
        paused = httpx2.post(f"{roots[1]}/api/v1/queues/jobs/pause", headers=form, trust_env=False)
        assert 204 == paused.status_code, paused.text
        asked = {"Origin": "https://shop.example.org", "Access-Control-Request-Method": "GET"}
        preflight = httpx2.options(f"{roots[0]}/api/v1/queues", headers=asked, trust_env=False)
        assert asked["Origin"] == preflight.headers["access-control-allow-origin"]
    for wrong in (["--origins", "queues"], ["--cors-origins", "https://x/"]):
        assert 2 == run("serve", "--http", "0", *wrong, url=sqlite_url).exit_code


def test_several_databases_have_a_switch_and_their_own_tokens(
    sqlite_url: str, jobs: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a dashboard of its own under its name; a token of one opens no other.

    A database that is not there yet is shown as unavailable until it is.
    """
    assert "jobs" == jobs.name
    other = f"sqlite:///{tmp_path / 'mail.db'}"
    with QueueService(other) as service:
        service.create_queue("letters")
    token = succeed("token", "add", "ada", "--role", "viewer", url=other).out.strip()
    late, known = tmp_path / "late.db", ("orders", "mail")
    monkeypatch.setenv("MAIL_URL", other)
    urls = (f"orders={sqlite_url}", "mail=env:MAIL_URL", f"late=sqlite:///{late}")
    given = [part for each in urls for part in ("--database", each)]
    log = tmp_path / "serve.log"
    with started("serve", "--http", "0", *given, url=sqlite_url, log=log) as process:
        wait_until(lambda: process.poll() is not None or address_in(log) is not None)
        root = address_in(log)
        assert root is not None, log.read_text()
        with httpx2.Client(base_url=root, trust_env=False, follow_redirects=True) as client:
            wait_until(lambda: {client.get(f"/{each}/").status_code for each in known} == {200})
            page = client.get("/")
            assert f"{root}/orders/" == str(page.url)
            assert "default-src 'none'" in page.headers["content-security-policy"]
            assert '<a href="/orders/" aria-current="true">orders</a><a href="/mail/">' in page.text
            assert "/orders/queues/jobs" in page.text
            assert "/mail/sign-in" in str(client.get("/mail").url)
            headers = {"authorization": f"Bearer {token}"}
            assert "letters" in client.get("/mail/", headers=headers).text
            assert 401 == client.get("/orders/api/v1/queues", headers=headers).status_code
            form = {"origin": root, "sec-fetch-site": "same-origin"}
            page = client.post("/mail/sign-in", data={"token": token}, headers=form)
            assert "letters" in page.text
            signed_in = [cookie.name for cookie in client.cookies.jar]
            assert ["queue_over_sql_session_mail"] == signed_in
            page = client.get("/late/queues/x")
            assert (503, "10") == (page.status_code, page.headers["retry-after"])
            assert "The database late does not answer" in page.text
            assert '<a href="/orders/">orders</a>' in page.text
            [style] = re.findall(r'href="([^"]+style.css[^"]*)"', page.text)
            assert 200 == client.get(style).status_code
            problem = client.get("/late/api/v1/queues").json()
            assert "/problems/database-unavailable" == problem["type"]
            assert 200 == client.get("/late/livez").status_code
            with QueueService(f"sqlite:///{late}") as service:
                service.create_queue("birds")
            wait_until(lambda: client.get("/late/").status_code == 200)
            assert "birds" in client.get("/late/").text
            lost = client.get("/none/")
            assert (404, "DENY") == (lost.status_code, lost.headers.get("x-frame-options"))
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30), log.read_text()
    for wrong in (["orders"], ["Orders=sqlite://"], [f"a={other}", f"a={other}"], ["a=env:NONE"]):
        options = [part for each in wrong for part in ("--database", each)]
        assert 2 == run("serve", "--http", "0", *options).exit_code


def test_no_database_keeps_others_from_being_served(
    sqlite_url: str, jobs: Queue, tmp_path: Path
) -> None:
    """Neither one that never answers, nor one that is down, which gets its reaper when it is up."""
    log = tmp_path / "serve.log"
    with ExitStack() as stack:
        mute = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        down = stack.enter_context(socket.socket())
        down.bind(("127.0.0.1", 0))
        given = ["--database", f"orders={sqlite_url}"]
        for name, each in (("mute", mute), ("down", down)):
            url = f"postgresql://127.0.0.1:{each.getsockname()[1]}/x"
            given += ["--database", f"{name}={url}"]
        process = stack.enter_context(started("serve", "--http", "0", *given, url="", log=log))
        wait_until(lambda: process.poll() is not None or address_in(log) is not None)
        root, said = address_in(log), log.read_text()
        assert root is not None, said
        assert "mute is not served yet: it has not answered yet" in said
        assert "The database down is not served yet" in said
        assert "runs no reaper" not in said
        with httpx2.Client(base_url=root, trust_env=False, follow_redirects=True) as client:
            wait_until(lambda: jobs.name in client.get("/orders/").text)
            assert {503} == {client.get(f"/{each}/").status_code for each in ("mute", "down")}
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30), log.read_text()


def test_others_are_not_served_without_a_token(sqlite_url: str, jobs: Queue) -> None:
    """The error says how to make one."""
    assert "jobs" == jobs.name
    ended = run("serve", "--http", "0.0.0.0:0", url=sqlite_url)
    assert 2 == ended.exit_code
    assert "token add" in ended.err
