"""What the database decides about the HTTP API, on every engine."""

from __future__ import annotations

import html
import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest
from sqlalchemy import literal_column

from queue_over_sql import NoRetry, Publication
from queue_over_sql.selection import operations as selection
from queue_over_sql.testing.plugin import MakeService, TestDatabase
from queue_over_sql.web.api.app import ENDPOINTS
from queue_over_sql.web.api.endpoints import JSON
from queue_over_sql.web.api.examples import BODIES
from queue_over_sql.web.app import create_app
from queue_over_sql.web.attempts import Attempts
from queue_over_sql.web.server import serving
from queue_over_sql.web.settings import Role, WebSettings
from tests.web.browser import Browser
from tests.web.conftest import MakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql import QueueService
    from queue_over_sql.web.api.endpoints import Endpoint

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
    assert {*held.values()} - {held["extend"]} == set(lost["lost"])
    assert 1 == lost["settled"]

    query = {"key": "nack", "status": "delayed"}
    answer = server.call("GET", "/queues/jobs/messages", params=query)
    (found,) = answer.json()["messages"]
    fields = {"payload": '{"verb": "nack"}'}
    by_field = server.call("GET", "/queues/jobs/messages", params=fields).json()
    if "type" in by_field:
        # An older H2 cannot look into JSON.
        assert "h2" == database.engine
        assert "/problems/unsupported-by-engine" == by_field["type"]
    else:
        assert [found["id"]] == [message["id"] for message in by_field["messages"]]
    assert "bad" == found["last_error"]
    assert {"verb": "nack", "n": 2**60} == found["payload"]
    every: dict[str, Any] = {"filter": {}}
    refused = server.call("POST", "/queues/jobs/messages/hold", json={**every, "at_most": 1})
    assert 409 == refused.status_code
    assert 2 == refused.json()["found"]
    assert 0 == server.json("POST", "/queues/jobs/messages/count", {"status": "held"})["count"]
    assert (
        2 == server.json("POST", "/queues/jobs/messages/hold", {**every, "at_most": 2})["changed"]
    )
    rejected: dict[str, Any] = {"filter": {"status": "rejected"}, "at_most": 1}
    for verb in ("requeue", "delete"):
        refused = server.call(
            "POST", f"/queues/jobs/archive/{verb}", json={**rejected, "at_most": 0}
        )
        assert 409 == refused.status_code, refused.text
        assert 1 == refused.json()["found"], refused.text
    assert 1 == server.service.queue("jobs").stats().rejected
    assert 1 == server.json("POST", "/queues/jobs/archive/requeue", rejected)["changed"]
    stats = server.json("GET", "/queues/jobs/stats")
    assert 1 == stats["ready"]
    assert 2 == stats["held"]
    assert 2 == stats["done"]
    assert ["requeue", "hold", "settings"] == [
        row["what"] for row in server.json("GET", "/audit", role=Role.OPERATOR)["rows"]
    ]


def test_equal_requests_publish_once(database: TestDatabase, make_server: MakeServer) -> None:
    """Sent at once, again, and after the end of the message, they all get the first answer.

    Their messages have a key, too; one that came second must not hear that the key is taken.
    """
    servers = [make_server(url=database.url) for _ in range(2)]
    jobs = servers[0].service.create_queue("jobs")
    servers[0].service.create_topic("events").subscribe("jobs", "#")
    tokens = servers[0].as_(Role.ADMIN)

    def send(at: int, path: str, key: str, body: dict[str, Any]) -> httpx2.Response:
        headers = {**tokens, "Idempotency-Key": key}
        return servers[at % 2].ask("POST", f"/api/v1{path}", headers=headers, json=body)

    path = "/queues/jobs/messages"
    with ThreadPoolExecutor(4) as pool:
        for number in range(3):
            key, body = f"order {number}", {"payload": number, "key": f"k{number}"}
            sent = partial(send, path=path, key=key, body=body)
            answers = list(pool.map(sent, range(8)))
            [(status, answer)] = {(each.status_code, each.text) for each in answers}
            assert 201 == status, answer
            assert 7 == sum("idempotent-replayed" in each.headers for each in answers)
            [message] = jobs.consume(10)
            assert (answers[0].json()["id"], number) == (str(message.id), message.payload)
            message.ack()
            assert (201, answer) == ((again := sent(1)).status_code, again.text)
            assert 422 == send(0, path, key, {**body, "payload": "other"}).status_code
            assert [] == jobs.consume()
    routed = {"payload": 1, "routing_key": "a"}
    both = [send(at, "/topics/events/messages", "event", routed) for at in range(2)]
    [(status, answer)] = {(each.status_code, each.text) for each in both}
    assert 201 == status, answer
    assert 1 == jobs.messages().count()


def test_searches_have_bounds(database: TestDatabase, make_server: MakeServer) -> None:
    """Paths that no statement can hold are refused; those at the bound are searched by."""
    server = make_server(url=database.url)
    server.service.create_queue("jobs")
    server.json("POST", "/queues/jobs/messages", {"payload": {"a": [1]}})
    fields: dict[int, list[dict[str, Any]]] = {
        200: [
            {".".join(["a"] * 50): 1},
            {f"a{number}.b": "x" for number in range(50)},
            {"a.99999999999": 1, "a." + "9" * 250: 1, "a.999999999": 1},
        ],
        422: [
            {".".join(["a"] * 51): 1},
            {".".join(["0"] * 150): 1},
            {f"a{number}": number for number in range(3_000)},
            {"a" * 251: 1},
            {"9" * 5_000: 1},
        ],
    }
    for status, searches in fields.items():
        for search in searches:
            answer = server.call("POST", "/queues/jobs/messages/count", json={"payload": search})
            assert status == answer.status_code, (str(search)[:100], answer.text)
            if len(str(search)) > 10_000:
                # No client sends such an address.
                continue
            query = {"payload": json.dumps(search)}
            answer = server.call("GET", "/queues/jobs/messages", params=query)
            assert status == answer.status_code, (str(search)[:100], answer.text)


# What no parser minds, and what statements, databases and recursion may.
HOSTILE: Final[dict[str, Any]] = {
    "a path of many steps": {".".join(["a"] * 150): 1},
    "many fields": {f"a{number}": number for number in range(3_000)},
    "deep": json.loads('{"a":[' * 48 + "1" + "]}" * 48),
    "a long text": "x" * 70_000,
    "a text that ends in NUL": "a\0",
    "half a character": "\ud800",
    "a large number": 10**400,
    "many numbers": ["1"] * 3_000,
}
HOSTILE_TEXTS: Final = [
    value if isinstance(value, str) else json.dumps(value)
    for name, value in HOSTILE.items()
    if name != "half a character"
]


@pytest.mark.engines("sqlite")
def test_no_input_is_an_error_of_the_server(
    database: TestDatabase, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each field of each body, query and form, and each filter of a page, has bounds."""
    monkeypatch.setattr(Attempts, "blocked_for", lambda *_: None)
    server = make_server(url=database.url, longest_wait=0.01)
    service = server.service
    service.create_queue("jobs", archive="all", group_limit=1).publish({"a": 1}, group="a")
    service.create_topic("events").subscribe("jobs", "#", where={"a": 1})
    service.schedules.add("daily", "jobs", {"a": 1}, every=3600)
    requests = [
        *(
            (each.id, each.method, path_of(each), given)
            for each in ENDPOINTS
            for given in inputs_of(each)
        ),
    ]
    wrong = []
    for name, method, path, given in requests:
        answer = server.call(method, path, **given)
        if answer.status_code >= 500:
            wrong.append((name, str(given)[:100], answer.text[:200]))
    for token in server.store.tokens():
        # Then everybody at this machine may use the pages.
        server.store.remove_token(token.name, last_admin=True)
    with serving(create_app(service, WebSettings(open_role=Role.ADMIN))) as root:
        browser = httpx2.Client(base_url=root, trust_env=False, timeout=60)
        for path, given in inputs_of_pages():
            answer = browser.get(path, **given)
            if answer.status_code >= 500:
                wrong.append((path, str(given)[:100], str(answer.status_code)))
        wrong += _wrong_forms(browser, root, service)
        browser.close()
    assert len(requests) > 500
    assert [] == wrong


def _wrong_forms(
    browser: httpx2.Client, root: str, service: QueueService
) -> list[tuple[str, str, str]]:
    """Each form as it should be, which must work, then with a hostile value in each field."""
    count = len(HOSTILE_TEXTS) * len(list(itertools.chain(*FORMS.values()))) + len(FORMS)
    queue = service.create_queue("forms", archive="all", group_limit=1)
    queue.load(Publication({"a": 1}, group=f"g{n}") for n in range(2 * count))
    dead = queue.consume(count)
    for message in dead:
        message.reject("no")
    known = {"dead": iter(dead), "live": iter(queue.messages(status="ready").list(count))}
    numbers = itertools.count()
    csrf = browser.get("/queues/forms").text.split('name="csrf" value="')[1].split('"')[0]

    def send(button: str, fields: dict[str, str]) -> httpx2.Response:
        given = {"queue": "forms", "confirmed": "1", "csrf": csrf} | fields
        for kind, messages in known.items():
            if given.get("id") == f"{{{kind}}}":
                given["id"] = str(next(messages).id)
        if given.get("token") == "{new}":
            given["token"] = f"ada{next(numbers)}"
        return browser.post(f"/do/{button}", headers={"origin": root}, data=given)

    wrong = []
    for button, fields in FORMS.items():
        answer = send(button, fields)
        if answer.status_code != 303 and "shown only this once" not in answer.text:
            wrong.append((button, "as it should be", answer.text))
        for field, text in itertools.product(fields, HOSTILE_TEXTS):
            answer = send(button, {**fields, field: text})
            if answer.status_code >= 500:
                wrong.append((button, f"{field}={text[:100]}", str(answer.status_code)))
    return wrong


def path_of(endpoint: Endpoint) -> str:
    """The path of an endpoint, to what is there."""
    known = {"queue": "jobs", "topic": "events", "name": "daily", "id": "1"}
    return endpoint.path.replace(":path", "").format_map(known)


def inputs_of(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    """Queries and bodies of an endpoint with one hostile value each."""
    if endpoint.id == "drop_queue":
        return
    if endpoint.query is not None:
        names = endpoint.query.__struct_fields__
        for field, text in itertools.product(names, HOSTILE_TEXTS):
            yield {"params": {field: text[:8_000]}}
    base = BODIES.get(endpoint.id)
    if isinstance(base, dict) and not endpoint.lines_in:
        names = getattr(endpoint.body, "__struct_fields__", tuple(base))
        for field, value in itertools.product(names, HOSTILE.values()):
            content = json.dumps({**base, field: value})
            yield {"content": content, "headers": {"content-type": JSON}}


def inputs_of_pages() -> Iterator[tuple[str, dict[str, Any]]]:
    """Addresses of pages with one hostile value each."""
    for path, names in PAGES.items():
        for field, text in itertools.product(names.split(), HOSTILE_TEXTS):
            given = {"field": "a"} if field == "value" else {}
            yield path, {"params": {**given, field: text[:8_000]}}


PAGES: Final = {
    "/queues/jobs": "span",
    "/queues/jobs/messages": "status key kind field value column is order after",
    "/queues/jobs/archive": "status key kind field value after error",
    "/queues/jobs/dead": "after",
    "/dead": "after",
    "/queues/jobs/groups": "by",
    "/search": "q queue before in",
    "/audit": "who what queue day after",
    "/topics": "key",
    "/sign-in": "back",
}
"""Pages, and the names in their addresses."""

FORMS: Final[dict[str, dict[str, str]]] = {
    "hold": {"id": "{live}"},
    "unhold": {
        "all": "1",
        "status": "",
        "key": "",
        "kind": "",
        "field": "a",
        "value": "1",
        "confirmed": "9999",
    },
    "remove": {"id": "{live}", "back": "/"},
    "redrive": {"id": "{dead}", "error": ""},
    "edit": {"id": "{dead}", "payload": "1"},
    "max-attempts": {"id": "{live}", "max_attempts": "9"},
    "delay": {"id": "{live}", "delay": "10m"},
    "pause": {"queue": "forms"},
    "settings": {"lease": "60", "max_attempts": "9", "archive": "all"},
    "configure-group": {"group": "g1", "limit": "3", "rate": "9/min", "weight": "2"},
    "run-schedule": {"schedule": "daily"},
    "add-token": {"token": "{new}", "role": "operator", "queues": "jobs*", "days": "9"},
    "remove-token": {"token": "ada0", "last_admin": "1"},
    "purge": {"queue": "forms", "confirmed": "1000"},
}
"""One button of each kind of form, with its fields, in an order in which all of them work.

``{live}`` and ``{dead}`` are a message of that kind, ``{new}`` is a name, another one each time.
"""


def test_lists_show_how_payloads_begin(make_service: MakeService) -> None:
    """On one line, of live and dead messages; masked fields are masked or nothing is shown."""
    service = make_service()
    secret = {"card": {"number": "4711"}, "note": "a\n  <b>"}
    many = {"card": {"number": "4711"}, "rest": ["x" * 70] * 100}
    payloads: dict[Any, list[Any]] = {
        "json": [secret, many],
        "text": ["one\n\ttwo <b>", "y" * 100_000],
        "bytes": [b"\x00\xff<b>!", b"\x01" * 100_000],
    }
    for kind, each in payloads.items():
        queue = service.create_queue(kind, payload=kind, archive="all", retry=NoRetry())
        queue.publish_many(each)
        for message in queue.consume(2):
            message.nack("bad")
        queue.publish_many(each)

    def seen(kind: str, browser: Browser) -> tuple[set[str], set[str], set[str]]:
        pages = (f"/queues/{kind}/{page}" for page in ("messages", "archive", "dead"))
        live, archived, dead = (_previews(browser.get(page)) for page in pages)
        return live, archived, dead

    with serving(create_app(service, WebSettings(open_role=Role.ADMIN))) as root:
        browser = Browser(root)
        live, archived, _ = seen("json", browser)
        assert live == archived
        assert {80 + 1} == {len(each) for each in live if each.endswith("…")}
        assert any("4711" in each and "a\\n <b>" in each for each in live)
        live, archived, (dead,) = seen("text", browser)
        assert {"one two <b>", "y" * 80 + "…"} == live == archived
        assert dead in live
        live, archived, (dead,) = seen("bytes", browser)
        assert {"00ff 3c62 3e21", ("0101 " * 16) + "…"} == live == archived
        browser.close()
    with serving(create_app(service, WebSettings(open_role=Role.ADMIN, masked=["number"]))) as root:
        browser = Browser(root)
        for page in seen("json", browser):
            assert page
            assert not any("4711" in each for each in page)
        (masked,) = {each for each in _previews(browser.page.text) if "large" in each}
        assert "(too large to mask its fields)" == masked
        browser.get("/queues/json/messages")
        assert any("•••" in each for each in _previews(browser.page.text))
        browser.close()


def _previews(text: str) -> set[str]:
    found = re.findall(r'class="[^"]*peek mono"><span[^>]*>(.*?)</td>', text)
    plain = (html.unescape(re.sub(r"<[^>]*>", "", each)) for each in found)
    return {each.removeprefix("Payload of the newest: ") for each in plain}


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
