"""What the database decides about the HTTP API, on every engine."""

from __future__ import annotations

from typing import Any, Final

import httpx2
import pytest
from sqlalchemy import literal_column

from queue_over_sql.store import selection
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from queue_over_sql.web.app import create_app
from queue_over_sql.web.server import serving
from queue_over_sql.web.settings import Role, WebSettings
from tests.web.browser import Browser
from tests.web.conftest import MakeServer

# A condition that is not known to hold within a minute, of one row.
FOR_EVER: Final = {
    "sqlite": "(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
    " SELECT count(*) FROM c) = 0",
    "postgresql": "pg_sleep(60) IS NULL",
    "mysql": "SLEEP(60) = 0",
    "mariadb": "SLEEP(60) = 0",
    "h2": "(SELECT MAX(X * X) FROM SYSTEM_RANGE(1, 100000000000) WHERE MOD(X, 7) = 1) = 0",
}


def test_life_of_messages(database: TestDatabase, make_server: MakeServer) -> None:
    """Publish, claim, settle in each way, search, edit under the guard, and send again."""
    server = make_server(url=database.url)
    server.json("PUT", "/queues/jobs", {"archive": "all", "lease": 30})
    verbs: dict[str, dict[str, Any]] = {
        "ack": {},
        "nack": {"error": "bad", "delay": 60},
        "release": {"delay": 60},
        "reject": {"reason": "never"},
        "extend": {},
    }
    many = [{"payload": {"verb": verb, "n": 2**60}, "key": verb} for verb in verbs]
    server.json("POST", "/queues/jobs/messages/batch", many)
    held = {
        message["payload"]["verb"]: message["claim"]
        for message in server.json("POST", "/queues/jobs/claim", {"count": 10})["messages"]
    }
    for verb, options in verbs.items():
        body = {"claims": [held[verb]], **options}
        assert {"settled": 1} == server.json("POST", f"/queues/jobs/{verb}", body)
    lost = server.call("POST", "/queues/jobs/ack", json={"claims": list(held.values())}).json()
    assert ({*held.values()} - {held["extend"]}, 1) == (set(lost["lost"]), lost["settled"])

    query = {"key": "nack", "status": "delayed"}
    answer = server.call("GET", "/queues/jobs/messages", params=query)
    (found,) = answer.json()["messages"]
    fields = {"payload": '{"verb": "nack"}'}
    by_field = server.call("GET", "/queues/jobs/messages", params=fields).json()
    if "type" in by_field:
        # An older H2 cannot look into JSON.
        assert ("h2", "/problems/unsupported-by-engine") == (database.engine, by_field["type"])
    else:
        assert [found["id"]] == [message["id"] for message in by_field["messages"]]
    assert ("bad", {"verb": "nack", "n": 2**60}) == (found["last_error"], found["payload"])
    every: dict[str, Any] = {"filter": {}}
    refused = server.call("POST", "/queues/jobs/messages/hold", json={**every, "at_most": 1})
    assert (409, 2) == (refused.status_code, refused.json()["found"])
    assert 0 == server.json("POST", "/queues/jobs/messages/count", {"status": "held"})["count"]
    assert (
        2 == server.json("POST", "/queues/jobs/messages/hold", {**every, "at_most": 2})["changed"]
    )
    rejected: dict[str, Any] = {"filter": {"status": "rejected"}, "at_most": 1}
    for verb in ("requeue", "delete"):
        refused = server.call(
            "POST", f"/queues/jobs/archive/{verb}", json={**rejected, "at_most": 0}
        )
        assert (409, 1) == (refused.status_code, refused.json()["found"]), refused.text
    assert 1 == server.service.queue("jobs").stats().rejected
    assert 1 == server.json("POST", "/queues/jobs/archive/requeue", rejected)["changed"]
    stats = server.json("GET", "/queues/jobs/stats")
    assert (1, 2, 2) == (stats["ready"], stats["held"], stats["done"])
    assert ["requeue", "hold", "settings"] == [
        row["what"] for row in server.json("GET", "/audit", role=Role.OPERATOR)["rows"]
    ]


def test_a_search_ends_in_time(
    make_service: MakeService, database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, counts and questions; the connection serves those after it as before."""
    service = make_service()
    jobs = service.create_queue("jobs", archive="all")
    jobs.publish(1)
    settings = WebSettings(open_role=Role.ADMIN, longest_read=0.2, threads=1)
    slow: list[Any] = [literal_column(FOR_EVER[database.engine])]
    with serving(create_app(service, settings)) as root:
        browser = Browser(root)
        csrf = browser.get("/queues/jobs").split('name="csrf" value="')[1].split('"')[0]
        every: dict[str, Any] = {"queue": "jobs", "all": "1", "csrf": csrf}
        headers = {"origin": root, "x-csrf-token": csrf}
        with monkeypatch.context() as patched:
            patched.setattr(selection, "extent_of", lambda *_: slow)
            for method, path in (("GET", "messages"), ("POST", "messages/count")):
                address = f"{root}/api/v1/queues/jobs/{path}"
                body: dict[str, Any] = {"json": {}} if method == "POST" else {}
                answer = httpx2.request(method, address, headers=headers, trust_env=False, **body)
                assert "/problems/search-too-slow" == answer.json()["type"], answer.text
                assert 503 == answer.status_code
            browser.get("/queues/jobs/messages", 503)
            assert "Narrow it" in browser.text()
            browser.post("/do/hold", 503, **every)
        browser.get("/queues/jobs/messages")
        assert "Hold 1 message?" in browser.post("/do/hold", **every)
        browser.press("Hold")
        browser.close()
    assert 1 == jobs.stats().held
