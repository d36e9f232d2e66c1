"""The effects of the HTTP API on queues, seen by its clients."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, text

from queue_over_sql import (
    ArchiveSelection,
    DatabaseUnavailable,
    NoRetry,
    Publication,
    Queue,
    QueueError,
    QueueService,
)
from queue_over_sql.selection.selection import Selection
from queue_over_sql.web.api.clients import HTTP_CLIENTS, ClientQueue
from queue_over_sql.web.api.counts import SharedStats
from queue_over_sql.web.idempotency import Idempotency
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.tables import WebStore
from tests.contract.groups.rules import each_rule
from tests.contract.payloads.kind_types import ORDERS
from tests.contract.queues.edits import refuse_changes_of
from tests.waiting import wait_until
from tests.web.conftest import MakeServer, Server

BIG = 2**53 + 1
NDJSON = {"Content-Type": "application/x-ndjson"}


def claimed(server: Server, **options: Any) -> list[dict[str, Any]]:
    """Messages that were claimed from ``jobs``."""
    found: list[dict[str, Any]] = server.json("POST", "/queues/jobs/claim", options)["messages"]
    return found


def tokens_of(messages: list[dict[str, Any]]) -> list[str]:
    """The tokens of claimed messages."""
    return [message["claim"] for message in messages]


# -- publish


def test_publish_with_all_options(server: Server) -> None:
    """A message has what its publisher gave it."""
    at = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    options = {"key": "k", "kind": "order", "headers": {"trace": "1"}, "max_attempts": 7}
    body = {"payload": {"n": 1}, "at": at.isoformat(), "lease": 9.5, **options}
    made = server.json("POST", "/queues/jobs/messages", body)
    shown = server.json("GET", f"/queues/jobs/messages/{made['id']}")["message"]
    assert options == {name: shown[name] for name in options}
    assert at == datetime.fromisoformat(shown["available_at"])
    assert {"n": 1} == shown["payload"]
    assert shown["group"] is None


def test_a_group_is_published_and_shown(server: Server) -> None:
    """A queue gets groups by its settings; without them a group is refused."""
    path, body = "/queues/jobs/messages", {"payload": 1, "group": "customer 7 "}
    refusal = server.call("POST", path, Role.ADMIN, json=body)
    assert refusal.status_code in {400, 422}, refusal.text
    assert "has no groups" in refusal.text
    changed = server.json("PUT", "/queues/jobs", {"group_limit": 2, "group_order": "any"})
    assert (2, "any") == (changed["group_limit"], changed["group_order"])
    made = server.json("POST", path, body)
    assert "customer 7 " == server.json("GET", f"{path}/{made['id']}")["message"]["group"]
    assert {} == server.json("GET", f"{path}/{made['id']}")["message"]["columns"]


def test_a_full_queue_refuses_over_http(server: Server) -> None:
    """A conflict with what is full, and with the place of the refused one of several."""
    path = "/queues/jobs/messages"
    limits = {"queue_limit": 2, "queue_rate": "9/s", "when_full": "reject"}
    changed = server.json("PUT", "/queues/jobs", limits)
    assert limits == {name: changed[name] for name in limits}
    stats = server.json("GET", "/queues/jobs/stats")
    assert (2, "9/s") == (stats["queue_limit"], stats["queue_rate"])
    server.json("POST", path, {"payload": 1})
    answer = server.call("POST", f"{path}/batch", json=[{"payload": n} for n in range(2)])
    assert 409 == answer.status_code, answer.text
    server.json("POST", path, {"payload": 2})
    answer = server.call("POST", path, json={"payload": 3})
    assert 409 == answer.status_code, answer.text
    problem = answer.json()
    assert ("/problems/group-full", "jobs", None, 2) == tuple(
        problem[name] for name in ("type", "queue", "group", "limit")
    )


def test_what_expired_is_a_dead_letter(server: Server, sqlite_url: str) -> None:
    """Nobody is given it; the archive shows how it ended and until when it had to be started."""
    body = {"payload": 1, "expires": 60}
    made = server.json("POST", "/queues/jobs/messages", body)
    path = f"/queues/jobs/messages/{made['id']}"
    shown = server.json("GET", path)["message"]
    published, expiry = (datetime.fromisoformat(shown[n]) for n in ("published_at", "expires_at"))
    assert timedelta(seconds=60) == expiry - published
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE queue_jobs SET expires_at = published_at + 1"))
    engine.dispose()
    assert [] == claimed(server)
    [dead] = server.json("GET", "/queues/jobs/archive?status=expired")["messages"]
    assert (made["id"], "expired") == (dead["id"], dead["outcome"])
    assert dead["last_error"].startswith("expired: not started within ")
    assert dead["expires_at"] is not None
    assert server.json("GET", path)["archived"] is True


def test_idempotency_key(server: Server) -> None:
    """Another body is refused, also a key that is no key; what was refused is not remembered."""
    headers = {"Idempotency-Key": "order-1"}
    path, body = "/queues/jobs/messages", {"payload": {"n": 2**70}, "priority": 0, "key": "a"}
    server.json("POST", path, {"payload": 1, "key": "a"})
    assert 409 == server.call("POST", path, headers=headers, json=body).status_code
    claims = {"claims": [each["claim"] for each in claimed(server)]}
    server.json("POST", "/queues/jobs/ack", claims)
    first = server.call("POST", path, headers=headers, json=body)
    assert 201 == first.status_code
    assert "idempotent-replayed" not in first.headers
    # The same, written in another way.
    again = server.call("POST", path, headers=headers, json=dict(reversed(body.items())))
    assert (201, first.json()) == (again.status_code, again.json())
    assert "true" == again.headers["idempotent-replayed"]
    for wrong in ({**body, "payload": {"n": 1}}, {**body, "delay": 5}, {**body, "payload": True}):
        answer = server.call("POST", path, headers=headers, json=wrong)
        assert (422, "/problems/idempotency-key-reused") == (
            answer.status_code,
            answer.json()["type"],
        )
    for key in ("", "k" * 201):
        wrong_key = {"Idempotency-Key": key}
        assert 422 == server.call("POST", path, headers=wrong_key, json=body).status_code
    keyless = server.call("POST", path, json={"payload": 1, "on_conflict": "skip"})
    assert 422 == keyless.status_code
    assert "no key" in keyless.text
    many = server.call("POST", f"{path}/batch", headers=headers, json=[body])
    assert 422 == many.status_code
    assert 1 == server.service.queue("jobs").messages().count()


def test_callers_have_idempotency_keys_of_their_own(server: Server) -> None:
    """What one of them publishes is no repetition of another's request."""
    headers, body = {"Idempotency-Key": "order-1"}, {"payload": 1}
    for role in (Role.ADMIN, Role.PUBLISHER):
        made = server.call("POST", "/queues/jobs/messages", role, headers=headers, json=body)
        assert 201 == made.status_code
        assert "idempotent-replayed" not in made.headers
    assert 2 == server.service.queue("jobs").messages().count()


def test_idempotency_keys_are_forgotten(make_server: MakeServer) -> None:
    """After the stated time the key is new, and what is kept of old ones is removed."""
    server = make_server(idempotency_hours=1e-9)
    server.service.create_queue("jobs")
    path, body = "/queues/jobs/messages", {"payload": 1}
    headers = {"Idempotency-Key": "order-1"}
    ids = {server.call("POST", path, headers=headers, json=body).json()["id"] for _ in range(3)}
    assert 3 == len(ids)
    idempotency = Idempotency(server.service, server.store, WebSettings())
    assert [1, 0] == [idempotency.prune(), idempotency.prune()]


def test_a_key_of_a_queue_that_was_dropped(server: Server) -> None:
    """The queue that is created anew has no message of the first, so it gets one."""
    path, body = "/queues/jobs/messages", {"payload": 1}
    headers = {"Idempotency-Key": "order-1"}
    server.call("POST", path, headers=headers, json=body)
    server.service.drop_queue("jobs")
    server.service.create_queue("jobs")
    assert 201 == server.call("POST", path, headers=headers, json=body).status_code
    assert 1 == server.service.queue("jobs").messages().count()


def test_taken_key(server: Server) -> None:
    """A key that is taken is a conflict, which names the message that has it."""
    body = {"payload": 1, "key": "k"}
    first = server.json("POST", "/queues/jobs/messages", body)
    answer = server.call("POST", "/queues/jobs/messages", json=body)
    problem = answer.json()
    assert 409 == answer.status_code
    assert "/problems/duplicate-key" == problem["type"]
    assert "jobs" == problem["queue"]
    assert "k" == problem["key"]
    assert first["id"] == problem["id"]


def test_json_that_would_change_is_refused(server: Server) -> None:
    """A key twice, a number that a float rounds, or half a character."""
    headers = {"Content-Type": "application/json"}
    for wrong in ('{"a": 1, "a": 2}', "1.000000000000000005"):
        as_text = json.dumps({"payload": wrong, "payload_encoding": "json"})
        for path, body in (
            ("/queues/jobs/messages", f'{{"payload": {wrong}}}'),
            ("/queues/jobs/messages/batch", f'[{{"payload": {wrong}}}]'),
            ("/queues/jobs/messages", as_text),
        ):
            answer = server.call("POST", path, headers=headers, content=body)
            assert 422 == answer.status_code, body
            assert "cannot be kept" in answer.text, body
    half = server.call(
        "POST", "/queues/jobs/messages", headers=headers, content=rb'{"payload": "\ud800"}'
    )
    assert 400 == half.status_code
    assert "/problems/not-readable" == half.json()["type"]
    assert 0 == server.service.queue("jobs").messages().count()


def test_large_numbers_survive_javascript(server: Server) -> None:
    """Ids are text; a payload can be text that holds JSON, whose numbers nobody bends."""
    text = f'{{"n":{BIG},"huge":{10**30},"f":0.1}}'
    body = {"payload": text, "payload_encoding": "json"}
    made = server.json("POST", "/queues/jobs/messages", body)
    assert isinstance(made["id"], str)
    assert {"n": BIG, "huge": 10**30, "f": 0.1} == server.service.queue("jobs").messages().list()[
        0
    ].payload
    (message,) = claimed(server, payload_encoding="json")
    assert text == message["payload"]
    assert "json" == message["payload_encoding"]
    plain = server.call("GET", f"/queues/jobs/messages/{made['id']}").text
    assert f'"n":{BIG}' in plain
    assert str(10**30) in plain


def test_queues_of_text_and_bytes(server: Server) -> None:
    """Bytes go and come in Base64, marked as such; text stands by itself."""
    server.json("PUT", "/queues/texts", {"payload": "text"})
    server.json("PUT", "/queues/blobs", {"payload": "bytes"})
    content = base64.b64encode(b"\0\xff").decode()
    server.json("POST", "/queues/texts/messages", {"payload": "<b>\u202e"})
    server.json(
        "POST", "/queues/blobs/messages", {"payload": content, "payload_encoding": "base64"}
    )
    (text,) = server.json("POST", "/queues/texts/claim")["messages"]
    (blob,) = server.json("POST", "/queues/blobs/claim")["messages"]
    assert "<b>\u202e" == text["payload"]
    assert "payload_encoding" not in text
    assert content == blob["payload"]
    assert "base64" == blob["payload_encoding"]
    for queue, body in (
        ("texts", {"payload": 1}),
        ("texts", {"payload": content, "payload_encoding": "base64"}),
        ("blobs", {"payload": "text"}),
        ("blobs", {"payload": "no base64!", "payload_encoding": "base64"}),
        ("jobs", {"payload": "{", "payload_encoding": "json"}),
    ):
        answer = server.call("POST", f"/queues/{queue}/messages", json=body)
        assert answer.status_code in {400, 422}, answer.text


def test_publish_many_is_all_or_none(server: Server) -> None:
    """One that is refused keeps the others out."""
    path = "/queues/jobs/messages/batch"
    many = [{"payload": 1, "key": "a"}, {"payload": 2}, {"payload": 3, "key": "a"}]
    assert 409 == server.call("POST", path, json=many).status_code
    assert 0 == server.service.queue("jobs").messages().count()
    done = server.json("POST", f"{path}?on_conflict=skip", many)["messages"]
    assert ["created", "created", "skipped"] == [each["outcome"] for each in done]


def test_publish_stream(server: Server) -> None:
    """Lines are published as they come; a problem says which line, and what was done before."""
    path = "/queues/jobs/messages/stream"
    good = "".join(f'{{"payload":{number}}}\n' for number in range(2_500)).encode()

    async def parts(text: bytes) -> Any:
        for begin in range(0, len(text), 7_001):
            yield text[begin : begin + 7_001]

    answer = server.call("POST", path, headers=NDJSON, content=parts(good + b'\n{"payload":1}'))
    assert 2_501 == answer.json()["count"], answer.text
    assert 2_501 == answer.json()["created"], answer.text
    answer = server.call("POST", path, headers=NDJSON, content=parts(good + b'{"payloat":1}\n'))
    problem = answer.json()
    assert 422 == answer.status_code
    assert 2_501 == problem["line"]
    assert 2_000 == problem["published"]
    refused = {
        422: b'{"payload":0,"priority":9}\n',
        413: b'{"payload":"' + b"x" * 2**20 + b'"}\n',
        409: b'{"payload":0,"key":"taken"}\n',
    }
    taken = server.service.queue("jobs").publish(0, key="taken")
    for status, line in refused.items():
        content = parts(b'{"payload":1}\n\n' * 3 + line + b'{"payload":2}\n' * 3)
        answer = server.call("POST", path, headers=NDJSON, content=content)
        problem = answer.json()
        assert (status, 7, 0) == (answer.status_code, problem["line"], problem["published"])
    content = parts(b'{"payload":1}\n' * 1_000 + b" \n" + b"1" * (4 * 2**20 + 1))
    answer = server.call("POST", path, headers=NDJSON, content=content)
    problem = answer.json()
    assert (413, 1_002, 1_000) == (answer.status_code, problem["line"], problem["published"])
    jobs = server.service.queue("jobs")
    jobs.messages(where=jobs.table.c.id >= taken.id).remove()
    assert [*range(2_500), 1, *range(2_000)] == [
        message.payload for message in server.service.queue("jobs").messages().list(10_000)
    ]


# -- claim and settle


def test_settle(server: Server) -> None:
    """Each verb does what it is called, under the fence of the claim."""
    jobs = server.service.create_queue("jobs", archive="all")
    jobs.publish_many(["ack", "nack", "release", "reject", "extend"])
    held = {message["payload"]: message["claim"] for message in claimed(server, count=10)}
    settle = "/queues/jobs/"
    more: dict[str, dict[str, Any]] = {
        "ack": {},
        "nack": {"error": "bad", "delay": 60},
        "release": {"delay": 60},
        "reject": {"reason": "never"},
        "extend": {"lease": 3_600},
    }
    for verb, options in more.items():
        assert {"settled": 1} == server.json(
            "POST", settle + verb, {"claims": [held[verb]], **options}
        )
    left = {message.payload: message for message in jobs.messages().list()}
    assert {"nack", "release", "extend"} == set(left)
    assert "bad" == left["nack"].last_error
    assert 1 == left["nack"].attempt
    assert 0 == left["release"].attempt
    until = left["extend"].lease_expires_at
    assert until is not None
    assert until > datetime.now(UTC) + timedelta(minutes=50)
    ended = {message.payload: message.outcome for message in jobs.archive.messages().list()}
    assert {"ack": "done", "reject": "rejected"} == ended
    for verb in ("ack", "nack", "release", "reject"):
        body = {"claims": [held[verb]], **more[verb]}
        problem = server.call("POST", settle + verb, json=body).json()
        assert "/problems/claim-lost" == problem["type"]
        assert [held[verb]] == problem["lost"]
        assert 0 == problem["settled"]


def test_nack_ends_after_the_last_attempt(server: Server) -> None:
    """Attempts are counted as of any consumer, and the last failure makes a dead letter."""
    server.service.queue("jobs").publish("bad", max_attempts=2)
    for attempt in (1, 2):
        (message,) = claimed(server)
        assert attempt == message["attempt"]
        assert 2 == message["max_attempts"]
        body = {"claims": [message["claim"]], "error": "boom", "delay": 0}
        server.json("POST", "/queues/jobs/nack", body)
    (dead,) = server.json("GET", "/queues/jobs/archive?status=failed")["messages"]
    assert "boom" == dead["last_error"]
    assert "failed" == dead["outcome"]


def test_stale_token(server: Server) -> None:
    """A claim whose lease has ended holds nothing, whoever has the message now; others do."""
    jobs = server.service.queue("jobs")
    jobs.publish_many([1, 2])
    first = claimed(server, lease=0.001)
    second: list[dict[str, Any]] = []

    def again() -> bool:
        second.extend(claimed(server, count=2))
        return {message["payload"] for message in second} == {1, 2}

    wait_until(again)
    both = tokens_of([*first, *second])
    problem = server.call("POST", "/queues/jobs/ack", json={"claims": both}).json()
    assert tokens_of(first) == problem["lost"]
    assert 2 == problem["settled"]
    assert 0 == jobs.messages().count()


def test_claim_outlives_its_server(make_server: MakeServer) -> None:
    """A message is settled by another server than the one it was claimed from."""
    one, other = make_server(), make_server()
    one.service.create_queue("jobs").publish(1)
    (token,) = tokens_of(claimed(one))
    one.service.stop()
    answer = other.ask(
        "POST", "/api/v1/queues/jobs/ack", headers=one.as_(Role.OPERATOR), json={"claims": [token]}
    )
    assert {"settled": 1} == answer.json()


@pytest.mark.parametrize("token", ["x", "A" * 22 + "!", "A" * 100, "é", "AAAA"])
def test_no_token(server: Server, token: str) -> None:
    """What is no token of a claim is refused, before anything is settled."""
    server.service.queue("jobs").publish(1)
    (good,) = tokens_of(claimed(server))
    answer = server.call("POST", "/queues/jobs/ack", json={"claims": [good, token]})
    assert 422 == answer.status_code
    assert 1 == server.service.queue("jobs").stats().claimed


def test_claims_of_others_are_safe(server: Server) -> None:
    """A guessed token settles nothing, nor what a Python consumer holds."""
    jobs = server.service.queue("jobs")
    jobs.publish(1)
    (message,) = jobs.consume()
    stamp = message.id.to_bytes(8, "big") + (message.consumer_round or 0).to_bytes(8, "big")
    guess = base64.urlsafe_b64encode(stamp).decode().rstrip("=")
    assert 409 == server.call("POST", "/queues/jobs/ack", json={"claims": [guess]}).status_code
    message.ack()


def test_long_poll(server: Server) -> None:
    """It answers as soon as there is a message, and without one when its time is over."""
    assert [] == claimed(server, wait=0.05)
    answers: list[list[dict[str, Any]]] = []
    waiting = [
        threading.Thread(target=lambda: answers.append(claimed(server, wait=60))) for _ in range(20)
    ]
    for thread in waiting:
        thread.start()
    with QueueService(server.service._parts.connections.engine.url) as other:
        other.queue("jobs").publish_many(range(20))
    for thread in waiting:
        thread.join(30)
    assert sorted(range(20)) == sorted(message["payload"] for (message,) in answers)


def test_going_down(server: Server) -> None:
    """A server that is to end answers whoever waits at once, and lets nobody wait any more."""
    answers: list[list[dict[str, Any]]] = []
    waiting = [
        threading.Thread(target=lambda: answers.append(claimed(server, wait=60))) for _ in range(5)
    ]
    for thread in waiting:
        thread.start()
    server.app.state.end_waits()
    for thread in waiting:
        thread.join(30)
    assert [[]] * 5 == answers
    assert [] == claimed(server, wait=60)


def test_waiting_takes_no_thread(make_server: MakeServer) -> None:
    """With one thread for the database, many wait for messages while others are answered."""
    server = make_server(threads=1)
    names = [f"q{number}" for number in range(4)]
    for name in names:
        server.service.create_queue(name)
    answers: list[str] = []

    def wait(name: str) -> None:
        answer = server.json("POST", f"/queues/{name}/claim", {"wait": 60})
        answers.extend(message["queue"] for message in answer["messages"])

    waiting = [threading.Thread(target=wait, args=(name,)) for name in names * 5]
    for thread in waiting:
        thread.start()
    for _ in range(5):
        for name in names:
            server.json("POST", f"/queues/{name}/messages", {"payload": 1})
    for thread in waiting:
        thread.join(30)
    assert sorted(names * 5) == sorted(answers)


def test_hanging_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever hangs up while a claim is under way gets nothing: it is given back, uncounted."""
    jobs = server.service.queue("jobs")
    jobs.publish(1)
    looking, go_on = threading.Event(), threading.Event()
    claim = ClientQueue.claim

    def slowly(self: ClientQueue, count: int, lease: float | None) -> Any:
        found = claim(self, count, lease)
        looking.set()
        assert go_on.wait(30)
        return found

    monkeypatch.setattr(ClientQueue, "claim", slowly)
    body = b'{"wait": 30}'
    sent: list[Any] = []
    events: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if events:
            return events.pop()
        await server.app.state.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def prepare() -> None:
        server.app.state.hung_up = anyio.Event()

    headers = {**server.as_(Role.OPERATOR), "content-type": "application/json"}
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": "/api/v1/queues/jobs/claim",
        "root_path": "",
        "query_string": b"",
        "headers": [(n.lower().encode(), v.encode()) for n, v in headers.items()],
        "client": ("203.0.113.9", 1),
        "server": ("queues.example.org", 80),
    }
    server.portal.call(prepare)
    call = server.portal.start_task_soon(server.app, scope, receive, send)
    assert looking.wait(30)
    assert 1 == jobs.stats().claimed

    async def hang_up() -> None:
        server.app.state.hung_up.set()

    server.portal.call(hang_up)
    go_on.set()
    call.result(30)
    (message,) = jobs.messages().list()
    assert 0 == message.attempt
    assert message.consumer_id is None


def test_all_clients_are_one_consumer(server: Server) -> None:
    """Its registration never expires, so that only leases bound what clients hold."""
    server.service.queue("jobs").publish(1)
    claimed(server)
    (consumer,) = [
        each
        for each in server.json("GET", "/consumers")["consumers"]
        if each["consumer_id"] == HTTP_CLIENTS
    ]
    assert consumer["expires_at"] is None


def test_clients_that_are_gone_know_no_kinds(server: Server, sqlite_url: str) -> None:
    """They have no heartbeat, so a kind that only they took ends after its time."""
    server.service.queue("jobs").publish(1)
    claimed(server)
    with QueueService(sqlite_url) as service:
        queue = service.create_queue("jobs", kinds=ORDERS, kind_timeout=60)
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        server.service.queue("jobs").publish({"id": 1}, kind="refund", at=long_ago)
        assert 1 == service.reap().dead_lettered
        assert ["refund"] == [dead.kind for dead in queue.archive.messages().list()]


# -- find and edit


def test_search(server: Server) -> None:
    """Pages by id, with the filters of the library, as JSON or line by line."""
    jobs = server.service.queue("jobs")
    jobs.publish_many([{"n": number, "even": number % 2 == 0} for number in range(10)])
    pages, after = [], ""
    while True:
        page = server.json("GET", f"/queues/jobs/messages?limit=4{after}")
        pages.append([message["payload"]["n"] for message in page["messages"]])
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == pages
    query = {"payload": '{"even": true}', "status": "ready", "limit": "100000"}
    headers = {"Accept": "application/x-ndjson"}
    answer = server.call("GET", "/queues/jobs/messages", params=query, headers=headers)
    assert "application/x-ndjson" == answer.headers["content-type"]
    assert [0, 2, 4, 6, 8] == [json.loads(line)["payload"]["n"] for line in answer.text.split()]
    for wrong in ("limit=0", "limit=5000", "status=lost", "payload=[]", "x=1", "limit=1&limit=2"):
        answer = server.call("GET", f"/queues/jobs/messages?{wrong}")
        assert 422 == answer.status_code, (wrong, answer.text)


def test_large_payloads_end_a_page(server: Server) -> None:
    """A page is no larger than a browser can take, however many messages were asked for."""
    server.service.queue("jobs").publish_many(["x" * 1_000_000] * 30)
    page = server.json("GET", "/queues/jobs/messages?limit=1000")
    assert 8 <= len(page["messages"]) < 30
    assert page["next"] is not None
    rest = server.json("GET", f"/queues/jobs/messages?limit=1000&after={page['next']}")
    assert 30 > len(rest["messages"]) > 0


def test_each_message_tells_its_status(server: Server) -> None:
    """The filter finds it by that; a message that was just claimed tells none."""
    jobs = server.service.queue("jobs")
    ids = [str(each.id) for each in jobs.publish_many([1, 2, 3, 4])]
    (held,) = claimed(server)
    assert held["status"] is None
    server.json("POST", "/queues/jobs/messages/hold", {"ids": [ids[1]]})
    server.json("POST", "/queues/jobs/messages/reschedule", {"ids": [ids[2]], "delay": 60})
    expected = dict(zip(ids, ("claimed", "held", "delayed", "ready"), strict=True))
    listed = server.json("GET", "/queues/jobs/messages")["messages"]
    assert expected == {each["id"]: each["status"] for each in listed}
    for number, status in expected.items():
        found = server.json("GET", f"/queues/jobs/messages?status={status}")["messages"]
        assert [number] == [each["id"] for each in found], status
        shown = server.json("GET", f"/queues/jobs/messages/{number}")["message"]
        assert status == shown["status"]
    server.json("POST", "/queues/jobs/reject", {"claims": [held["claim"]], "reason": "no"})
    (dead,) = server.json("GET", "/queues/jobs/archive")["messages"]
    assert ("rejected", "rejected") == (dead["outcome"], dead["status"])


def test_edit_by_ids(server: Server) -> None:
    """What a consumer holds is left alone, and counted."""
    jobs = server.service.queue("jobs")
    ids = [each.id for each in jobs.publish_many([1, 2, 3])]
    (held,) = claimed(server)
    body = {"ids": [str(ids[0]), ids[1]]}
    assert {"changed": 1, "skipped": 1} == server.json("POST", "/queues/jobs/messages/hold", body)
    assert 1 == jobs.messages(status="held").count()
    server.json("POST", "/queues/jobs/messages/unhold", {"ids": ids})
    assert 0 == jobs.messages(status="held").count()
    server.json("POST", "/queues/jobs/messages/reschedule", {"ids": [ids[2]], "delay": 60})
    assert 1 == jobs.messages(status="delayed").count()
    server.json("POST", "/queues/jobs/messages/prioritize", {"ids": [ids[1]], "front": True})
    assert {"changed": 1, "skipped": 0} == server.json(
        "POST", "/queues/jobs/messages/cancel", {"ids": [held["id"]], "reason": "no"}
    )
    server.json("POST", "/queues/jobs/messages/delete", {"ids": ids})
    assert 0 == jobs.messages().count()
    rows = server.json("GET", "/audit?queue=jobs")["rows"]
    assert ["remove", "cancel", "prioritize", "reschedule", "unhold", "hold"] == [
        row["what"] for row in rows
    ]
    assert "admin" == rows[-1]["who"]
    assert "jobs" == rows[-1]["queue"]
    assert 1 == rows[-1]["count"]
    assert f"ids {ids[0]}, {ids[1]}" == rows[-1]["detail"]
    assert f"ids {held['id']}; reason: no" == rows[1]["detail"]
    assert f"ids {ids[2]}; delay 1 min" == rows[3]["detail"]
    by = {"queue": "jobs", "who": "admin", "what": "cancel", "day": rows[0]["at"][:10]}
    assert [rows[1]] == server.call("GET", "/audit", params=by).json()["rows"]
    for other in ({"who": "ada"}, {"what": "pause"}, {"day": "2020-01-31"}, {"queue": "no"}):
        assert [] == server.call("GET", "/audit", params=by | other).json()["rows"]


def test_edit_by_filter_is_guarded(server: Server) -> None:
    """Where a filter finds more than were seen, nothing is changed."""
    jobs = server.service.queue("jobs")
    jobs.publish_many([{"a": 1}, {"a": 1}, {"a": 2}])
    found = {"filter": {"payload": {"a": 1}}}
    counted = server.json("POST", "/queues/jobs/messages/count", found["filter"])["count"]
    path = "/queues/jobs/messages/delete"
    assert 422 == server.call("POST", path, json=found).status_code
    problem = server.call("POST", path, json={**found, "at_most": 1}).json()
    assert "/problems/too-many-found" == problem["type"]
    assert 2 == problem["found"]
    assert 3 == jobs.messages().count()
    assert 2 == server.json("POST", path, {**found, "at_most": counted})["changed"]


def test_requeue(server: Server) -> None:
    """Dead letters get a new life: by id, or all that a filter finds."""
    jobs = server.service.queue("jobs")
    jobs.publish_many([1, 2, 3])
    server.json(
        "POST",
        "/queues/jobs/reject",
        {"claims": tokens_of(claimed(server, count=3)), "reason": "broken at 1"},
    )
    first = server.json("GET", "/queues/jobs/archive")["messages"][0]
    path = "/queues/jobs/archive/requeue"
    assert 1 == server.json("POST", path, {"ids": [first["id"]]})["changed"]
    [error] = server.json("GET", "/queues/jobs/errors")["errors"]
    assert ("broken at 1", 2, 2) == (error["error"], error["count"], sum(error["hours"]))
    same = {"filter": {"error": error["fingerprint"]}}
    other = {"filter": {"error": "0" * 16}, "at_most": 9}
    assert 0 == server.json("POST", path, other)["changed"]
    assert 2 == len(
        server.json("GET", f"/queues/jobs/archive?error={error['fingerprint']}")["messages"]
    )
    assert 2 == server.json("POST", "/queues/jobs/archive/count", same["filter"])["count"]
    assert (
        422 == server.call("POST", "/queues/jobs/messages/count", json=same["filter"]).status_code
    )
    rejected = {"filter": {"status": "rejected", **same["filter"]}}
    assert 409 == server.call("POST", path, json={**rejected, "at_most": 1}).status_code
    assert 2 == server.json("POST", path, {**rejected, "at_most": 2})["changed"]
    assert 3 == jobs.stats().ready
    assert 0 == jobs.stats().archived


def test_edit_and_requeue_one(server: Server) -> None:
    """A dead letter tells its attempts, and gets another payload; a live one more attempts."""
    jobs = server.service.queue("jobs")
    number = jobs.publish({"n": 1}, max_attempts=2).id
    body = {"ids": [str(number)], "max_attempts": 1}
    assert 1 == server.json("POST", "/queues/jobs/messages/max-attempts", body)["changed"]
    (message,) = jobs.consume()
    message.nack(ValueError("no 4711"))
    told = server.json("GET", f"/queues/jobs/messages/{number}")["attempts"]
    assert [(1, "failed", "ValueError: no 4711")] == [
        (each["attempt"], each["outcome"], each["error"]) for each in told
    ]
    assert told[0]["worker"] == told[0]["host"]
    path = "/queues/jobs/archive/requeue"
    payload = {"payload": {"n": 2}}
    assert (
        422 == server.call("POST", path, json={"filter": {}, "at_most": 9, **payload}).status_code
    )
    assert 422 == server.call("POST", path, json={"ids": ["1", "2"], **payload}).status_code
    assert 1 == server.json("POST", path, {"ids": [str(number)], **payload})["changed"]
    assert [{"n": 2}] == [each.payload for each in jobs.consume()]


@pytest.mark.parametrize("verb", ["requeue", "delete"])
def test_what_comes_meanwhile_is_left_alone(
    verb: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more are changed than were confirmed, whenever the others come."""
    jobs = server.service.create_queue("jobs", archive="all")
    counted = ArchiveSelection.count

    def reject_one() -> None:
        jobs.publish(1)
        jobs.consume(1)[0].reject("broken")

    def and_then_one_more(selection: ArchiveSelection) -> int:
        found = counted(selection)
        reject_one()
        return found

    reject_one()
    monkeypatch.setattr(ArchiveSelection, "count", and_then_one_more)
    path = "/queues/jobs/archive"
    found = server.json("POST", f"{path}/count", {})["count"]
    body = {"filter": {}, "at_most": found}
    answer = server.call("POST", f"{path}/{verb}", json=body)
    assert 409 == answer.status_code, answer.text
    assert answer.json()["found"] > found, answer.text
    assert 2 <= counted(jobs.archive.messages())
    assert [] == server.json("GET", "/audit?queue=jobs")["rows"]


def test_nothing_is_changed_that_is_not_in_the_audit(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its row cannot be written, the change is undone."""
    jobs = server.service.queue("jobs")
    jobs.publish(1)

    def fail(*_: Any, **__: Any) -> None:
        raise QueueError("the disk is full")

    monkeypatch.setattr(WebStore, "write_audit", fail)
    answer = server.call("POST", "/queues/jobs/messages/delete", json={"ids": [1]})
    assert 409 == answer.status_code, answer.text
    assert 1 == jobs.stats().ready
    # What is no change of messages goes on, and the log has it.
    server.json("POST", "/queues/jobs/pause")


def test_story(server: Server) -> None:
    """One message shows what happened to it, also once it is finished."""
    jobs = server.service.queue("jobs")
    made = jobs.publish(1, max_attempts=1)
    with pytest.raises(RuntimeError), jobs.receive():
        raise RuntimeError("boom")
    story = server.json("GET", f"/queues/jobs/messages/{made.id}")
    assert story["archived"] is True
    assert "RuntimeError: boom" == story["message"]["last_error"]
    assert "Traceback" in story["last_traceback"]
    assert 404 == server.call("GET", "/queues/jobs/messages/999").status_code
    assert 422 == server.call("GET", "/queues/jobs/messages/one").status_code


def test_why(server: Server) -> None:
    """The one reason, also for a message that has ended; 404 where there is none."""
    jobs = server.service.queue("jobs")
    path = f"/queues/jobs/messages/{jobs.publish(1).id}/why"
    nobody = server.json("GET", path)
    assert "no_consumer" == nobody["reason"]
    assert "Start a worker" in nobody["text"]
    [message] = jobs.consume(lease=3600)
    hand = server.json("GET", path)
    assert "claimed" == hand["reason"]
    assert message.consumer_id == hand["consumer"]["consumer_id"] == hand["consumer_id"]
    assert hand["until"] is not None
    message.release()
    assert 1 == server.json("GET", path)["position"]
    assert 404 == server.call("GET", "/queues/jobs/messages/999/why").status_code


def test_why_of_groups_and_limits(server: Server) -> None:
    """The same reason, text and facts as in the library, for each rule."""
    for queue, waiting, reason in each_rule(server.service):
        known = queue.why(waiting)
        said = server.json("GET", f"/queues/{queue.name}/messages/{waiting}/why")
        assert (reason, known.text) == (said["reason"], said["text"])
        waits_for = None if known.waits_for is None else str(known.waits_for)
        assert (waits_for, known.consumer_id) == (said["waits_for"], said["consumer_id"])
        assert (known.until is None) == (said["until"] is None)


def test_a_cancel_that_ends_halfway_says_so(server: Server, sqlite_url: str) -> None:
    """The problem says how many were cancelled before it, and so does the audit."""
    jobs = server.service.queue("jobs")
    ids = [each.id for each in jobs.publish_many([1, 2, 3, 4])]
    refuse_changes_of(ids[2], sqlite_url)
    problem = server.call("POST", "/queues/jobs/messages/cancel", json={"ids": ids})
    assert not problem.is_success
    assert "Before that, 2 messages had been cancelled." in problem.json()["detail"]
    assert ids[2:] == [each.id for each in jobs.messages().list()]
    assert 2 == server.json("GET", "/audit?queue=jobs")["rows"][0]["count"]


def test_hostile_rows(server: Server, sqlite_url: str) -> None:
    """What another client wrote into a row stops that message only, and is valid JSON outside."""
    jobs = server.service.queue("jobs")
    jobs.publish_many([1, 2, 3, 4, 5])
    engine = create_engine(sqlite_url)
    deep = "[" * 500 + "]" * 500
    with engine.begin() as connection:
        for number, column, value in (
            (1, "scheduled_at", 2**62),
            (2, "payload", "{not json"),
            (3, "payload", '{"f": 1e999, "s": "\\ud800"}'),
            (4, "payload", deep),
        ):
            connection.execute(
                text(f"UPDATE queue_jobs SET {column} = :value WHERE id = :id"),
                {"value": value, "id": number},
            )
    engine.dispose()
    page = server.json("GET", "/queues/jobs/messages")
    assert ["1"] == page["unreadable"]
    assert ["2", "3", "4", "5"] == [message["id"] for message in page["messages"]]
    assert deep == page["messages"][2]["payload"]
    assert "json" == page["messages"][2]["payload_encoding"]
    strict = server.call("GET", "/queues/jobs/messages/3").text
    json.loads(strict, parse_constant=pytest.fail)
    taken = claimed(server, count=10)
    assert {"3", "4", "5"} == {message["id"] for message in taken}


def test_masked_fields(make_server: MakeServer) -> None:
    """Nobody is shown them, and nobody may search by them; consumers get them."""
    server = make_server(masked=["password", "user.iban"])
    payload = {"user": {"name": "Ada", "iban": "DE1"}, "list": [{"Password": "x"}]}
    server.service.create_queue("jobs").publish(payload, headers={"password": "y"})
    for path in ("", "/1", "?payload_encoding=json"):
        text = server.call("GET", f"/queues/jobs/messages{path}").text
        assert "Ada" in text
        assert not any(secret in text for secret in ("DE1", '"x"', '"y"', '\\"x\\"'))
    for hidden in ("user.iban", "list.0.password"):
        query = {"payload": json.dumps({hidden: "DE1"})}
        assert 403 == server.call("GET", "/queues/jobs/messages", params=query).status_code
    assert payload == claimed(server)[0]["payload"]


def test_rows_of_an_existing_table(server: Server, sqlite_url: str) -> None:
    """The rows of a table of the user's are claimed and settled like messages."""
    engine = create_engine(sqlite_url)
    table = Table(
        "orders", MetaData(), Column("id", Integer, primary_key=True), Column("item", String)
    )
    table.metadata.create_all(engine)
    engine.dispose()
    orders = server.service.adopt_queue("orders", table)
    orders.publish({"item": "tea"})
    assert 1 == server.json("GET", "/queues/orders/stats")["ready"]
    for item, count in (("tea", 1), ("salt", 0), (None, 0)):
        by = {"columns": {"item": item}}
        assert {"count": count} == server.json("POST", "/queues/orders/messages/count", by)
        query = {"columns": json.dumps({"item": item})}
        found = server.call("GET", "/queues/orders/messages", params=query).json()["messages"]
        assert count == len(found)
    # An empty text is not the absence of a value.
    empty = {"columns": '{"item":""}'}
    for wrong in ({"key": "a"}, {"columns": '{"none":1}'}, {"columns": '{"id":[1]}'}, empty):
        answer = server.call("GET", "/queues/orders/messages", params=wrong)
        assert 422 == answer.status_code
        assert "where=" not in answer.text
    server.json("POST", "/queues/orders/messages", {"payload": {"item": "salt"}})
    (message,) = server.json("POST", "/queues/orders/claim")["messages"]
    assert "tea" == message["payload"]["item"]
    assert {"settled": 1} == server.json(
        "POST", "/queues/orders/ack", {"claims": [message["claim"]]}
    )
    assert "orders" in str(server.json("GET", "/queues/orders")["table"])


def test_negative_ids(server: Server, sqlite_url: str) -> None:
    """Rows of an adopted table may have them; they are shown, paged and cancelled like others."""
    engine = create_engine(sqlite_url)
    table = Table("orders", MetaData(), Column("id", Integer, primary_key=True))
    table.metadata.create_all(engine)
    engine.dispose()
    orders = server.service.adopt_queue("orders", table)
    orders.publish_many([{"id": number} for number in (-3, -2, 1)])
    assert "-3" == server.json("GET", "/queues/orders/messages/-3")["message"]["id"]
    page = server.json("GET", "/queues/orders/messages?limit=1&after=-3")
    assert ["-2"] == [each["id"] for each in page["messages"]]
    assert "-2" == page["next"]
    for ids in (["-3"], [-2]):
        assert 1 == server.json("POST", "/queues/orders/messages/cancel", {"ids": ids})["changed"]
    for wrong in ("--1", "-", str(2**63), "²"):
        answer = server.call("GET", f"/queues/orders/messages/{wrong}")
        assert 422 == answer.status_code


# -- the rest


def test_queues(server: Server) -> None:
    """Create, change, pause, purge and drop, each with its guard."""
    body = {"lease": 30, "archive_ttl": {"done": 60}, "dedup_window": None, "priorities": 3}
    made = server.json("PUT", "/queues/more", body)
    assert 30.0 == made["lease"]
    assert {"done": 60.0} == made["archive_ttl"]
    assert 3 == made["priorities"]
    assert 7.0 == server.json("PUT", "/queues/more", {"lease": 7})["lease"]
    # What a queue is called names it nowhere here, because rights go by names.
    called = server.service.create_queue("More: 1")
    for path, status in (("More: 1", 404), ("More%3A%201", 404), (called.name, 200)):
        assert status == server.call("GET", f"/queues/{path}").status_code
    assert 422 == server.call("PUT", "/queues/Even%20more", json=body).status_code
    server.service.drop_queue("More: 1")
    assert 409 == server.call("PUT", "/queues/more", json={"payload": "text"}).status_code
    server.json("POST", "/queues/more/pause")
    assert server.json("GET", "/queues/more")["paused"]
    server.json("POST", "/queues/more/resume")
    server.json("POST", "/queues/more/messages", {"payload": 1, "priority": 2})
    assert 409 == server.call("POST", "/queues/more/purge", json={"confirm": "jobs"}).status_code
    assert 1 == server.json("POST", "/queues/more/purge", {"confirm": "more"})["count"]
    assert 409 == server.call("DELETE", "/queues/more?confirm=jobs").status_code
    server.json("DELETE", "/queues/more?confirm=more")
    assert ["jobs"] == [queue["name"] for queue in server.json("GET", "/queues")["queues"]]
    assert 404 == server.call("DELETE", "/queues/more?confirm=more").status_code


def test_messages_of_a_group(server: Server) -> None:
    """``?group=`` selects by bytes, also the empty name, with other filters, and what ended."""
    server.json("PUT", "/queues/lines", {"group_limit": 1, "archive": "all"})
    lines = server.service.queue("lines")
    names = ["a", "A", "a ", "é", ""]
    lines.publish_many([Publication([n, i], group=n) for i in range(2) for n in [*names, None]])

    def found(path: str, **query: str) -> list[Any]:
        text = urllib.parse.urlencode(query)
        messages = server.json("GET", f"/queues/lines/{path}?{text}")["messages"]
        return [each["payload"] for each in messages]

    for name in names:
        assert [[name, 0], [name, 1]] == found("messages", group=name)
    assert 12 == len(found("messages"))
    [held] = lines.consume(1)
    assert [["a", 0]] == found("messages", group="a", status="claimed")
    assert [["a", 1]] == found("messages", group="a", status="ready")
    held.ack()
    assert [["a", 0]] == found("archive", group="a")
    assert [] == found("archive", group="A")
    body = {"filter": {"group": "", "status": "ready"}, "at_most": 2}
    assert 2 == server.json("POST", "/queues/lines/messages/hold", body)["changed"]
    assert [["", 0], ["", 1]] == found("messages", status="held")
    refused = server.call("GET", "/queues/jobs/messages?group=a")
    assert 422 == refused.status_code, refused.text
    assert "has no groups" in refused.text


def test_put_takes_what_get_shows(server: Server, sqlite_url: str) -> None:
    """Of each kind of queue, unchanged or as a copy; what is no setting must be as it is."""
    day = timedelta(days=1)
    service = server.service
    service.create_queue("more", archive_ttl={"done": day}, archive_limit={"failed": 5}, lease=7)
    service.create_queue("lines", group_limit=2, group_rate="5/s", when_full="reject")
    service.create_queue("blobs", payload="bytes", retry=NoRetry(), expires=day, dedup_window=day)
    engine = create_engine(sqlite_url)
    table = Table("orders", MetaData(), Column("id", Integer, primary_key=True))
    table.metadata.create_all(engine)
    engine.dispose()
    service.adopt_queue("orders", table)
    for name in ("jobs", "more", "lines", "blobs", "orders"):
        shown = server.json("GET", f"/queues/{name}")
        assert shown == server.json("PUT", f"/queues/{name}", shown), name
    server.json("POST", "/queues/more/pause")
    paused = server.json("GET", "/queues/more")
    assert server.json("PUT", "/queues/more", {**paused, "lease": 8})["paused"]
    copy = {**server.json("GET", "/queues/lines"), "name": "copied"}
    assert copy == server.json("PUT", "/queues/copied", copy)
    for wrong in ({"paused": False}, {"name": "x"}, {"retry": {"policy": "x"}}, {"columns": ["x"]}):
        answer = server.call("PUT", "/queues/more", json={**paused, **wrong})
        assert 422 == answer.status_code
        assert next(iter(wrong)) in answer.json()["detail"]


def test_a_claim_of_the_longest_names(make_server: MakeServer) -> None:
    """The token of a claim names its queue, so it is long; it settles all the same."""
    server = make_server()
    name = "q" * 40
    server.service.create_queue(name).publish(1)
    (message,) = server.json("POST", f"/queues/{name}/claim")["messages"]
    body = {"claims": [message["claim"]]}
    assert {"settled": 1} == server.json("POST", f"/queues/{name}/ack", body)


def test_groups(server: Server) -> None:
    """List them, pause, resume, unblock and configure one, and see it in the audit."""
    body = {"group_limit": 1, "block_on_failure": True}
    assert server.json("PUT", "/queues/lines", body)["block_on_failure"]
    lines = server.service.queue("lines")
    ids = [lines.publish(name, group=name[:1]).id for name in ("a1", "a2", "b1", "")]
    lines.consume(1)[0].reject("no")
    blocked = server.json("GET", "/queues/lines/groups?by=age")["groups"]
    assert {"a": ("blocked", str(ids[0])), "b": ("ready", None), "": ("ready", None)} == {
        each["name"]: (each["state"], each["blocked_by"]) for each in blocked
    }
    server.json("POST", "/queues/lines/groups/unblock", {"group": "a"})
    server.json("POST", "/queues/lines/groups/pause", {"group": ""})
    server.json("POST", "/queues/lines/groups/configure", {"group": "b", "limit": 3})
    path = "/queues/lines/groups"
    found = {each["name"]: each for each in server.json("GET", path)["groups"]}
    assert ["ready", "paused"] == [found["a"]["state"], found[""]["state"]]
    assert (3, 3) == (found["b"]["limit"], found["b"]["own_limit"])
    server.json("POST", "/queues/lines/groups/resume", {"group": ""})
    assert [1] == [each["waiting"] for each in server.json("GET", f"{path}?limit=1")["groups"]]
    assert 403 == server.call("POST", f"{path}/pause", Role.VIEWER, json={"group": "a"}).status_code
    assert 422 == server.call("GET", "/queues/jobs/groups").status_code
    assert 422 == server.call("POST", f"{path}/configure", json={"group": "b"}).status_code
    server.json("POST", f"{path}/configure", {"group": "b", "rate": "5/s", "weight": 3})
    [rated] = [each for each in server.json("GET", path)["groups"] if each["name"] == "b"]
    assert (3, "5/s", "5/s") == (rated["limit"], rated["rate"], rated["own_rate"])
    assert (3, 3) == (rated["weight"], rated["own_weight"])
    zero = {"group": "b", "weight": 0}
    assert 422 == server.call("POST", f"{path}/configure", json=zero).status_code
    assert server.json("PUT", "/queues/shared", {"group_fair": True})["group_fair"]
    audit = [(row["what"], row["detail"]) for row in server.json("GET", "/audit")["rows"]]
    assert ("configure-group", "group b: limit none → 3") in audit


def test_counts_are_shared(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty who look at once cost one count."""
    counted = []
    stats = Queue.stats

    def counting(self: Queue) -> Any:
        counted.append(self.name)
        return stats(self)

    monkeypatch.setattr(Queue, "stats", counting)
    asking = [
        threading.Thread(target=server.json, args=("GET", "/queues/jobs/stats")) for _ in range(20)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(30)
    assert ["jobs"] == counted


def test_searches_keep_no_claim_waiting(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing, claiming and settling have threads of their own; so has seeing who asks."""
    server = make_server(threads=1)
    server.service.create_queue("jobs")
    looking, go_on = threading.Event(), threading.Event()

    def slowly(*_: Any, **__: Any) -> list[Any]:
        looking.set()
        assert go_on.wait(60)
        return []

    monkeypatch.setattr(Selection, "list", slowly)
    monkeypatch.setattr("queue_over_sql.web.access._FRESH_SECONDS", -1.0)
    search = threading.Thread(target=server.json, args=("GET", "/queues/jobs/messages"))
    search.start()
    assert looking.wait(30)
    server.json("POST", "/queues/jobs/messages", {"payload": 1})
    held = tokens_of(claimed(server))
    assert {"settled": 1} == server.json("POST", "/queues/jobs/ack", {"claims": held})
    go_on.set()
    search.join(30)


def test_who_waits_for_a_count_takes_no_thread(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one counts, the others leave the threads to other requests."""
    server = make_server(threads=2)
    server.service.create_queue("jobs")
    looking, go_on = threading.Event(), threading.Event()
    stats = Queue.stats

    def slowly(self: Queue) -> Any:
        looking.set()
        assert go_on.wait(60)
        return stats(self)

    shared, asked = SharedStats.of, []

    async def of(self: SharedStats, name: str, look: Any) -> Any:
        asked.append(name)
        return await shared(self, name, look)

    monkeypatch.setattr(Queue, "stats", slowly)
    monkeypatch.setattr(SharedStats, "of", of)
    asking = [
        threading.Thread(target=server.json, args=("GET", "/queues/jobs/stats")) for _ in range(5)
    ]
    for thread in asking:
        thread.start()
    assert looking.wait(30)
    wait_until(lambda: len(asked) == len(asking))
    assert server.json("GET", "/queues")["queues"]
    go_on.set()
    for thread in asking:
        thread.join(30)


def test_schedules(server: Server) -> None:
    """Look at schedules, whose names may be any text, run, pause and resume them."""
    server.service.schedules.add("a/b é", "jobs", {"n": 1}, every=3600, lease=5)
    path = "/schedules/a%2Fb%20%C3%A9"
    shown = server.json("GET", path)
    assert 3600.0 == shown["every"]
    assert {"lease": 5} == shown["options"]
    assert shown["paused"] is False
    assert 3 == len(server.json("GET", f"{path}/upcoming?count=3")["upcoming"])
    server.json("POST", f"{path}/pause")
    (paused,) = server.json("GET", "/schedules")["schedules"]
    assert paused["paused"] is True
    assert paused["next_at"] is None
    published = server.json("POST", f"{path}/run")
    (message,) = server.json("POST", "/queues/jobs/claim", {})["messages"]
    assert published["id"] == message["id"]
    assert {"n": 1} == message["payload"]
    server.json("POST", f"{path}/resume")
    assert [published["id"]] == [each["id"] for each in server.json("GET", path)["last_runs"]]
    assert 404 == server.call("POST", "/schedules/none/pause").status_code


def test_an_absent_name_is_answered_in_words_of_http(server: Server) -> None:
    """The answer names it, and one that is close, and gives no advice for Python programs."""
    absent = {
        "/queues/job": "There is no queue 'job' in this database; did you mean 'jobs'?",
        "/queues/orders": "There is no queue 'orders' in this database.",
        "/topics/none/subscriptions": "There is no topic 'none' in this database.",
        "/schedules/none/upcoming": "There is no schedule 'none' in this database.",
    }
    for path, detail in absent.items():
        answer = server.call("GET", path)
        assert (404, detail) == (answer.status_code, answer.json()["detail"])
    answer = server.call("POST", "/queues/jobs/ack", json={"claims": ["x"]})
    assert "of queue 'jobs'. Pass the whole token, unchanged." in answer.json()["detail"]


def test_topics(server: Server) -> None:
    """See where a message would go, and send it there."""
    topic = server.service.create_topic("events")
    topic.subscribe("jobs", "orders.*", where={"paid": True})
    (subscription,) = server.json("GET", "/topics/events/subscriptions")["subscriptions"]
    assert "jobs" == subscription["queue"]
    assert "orders.*" == subscription["pattern"]
    for payload, queues in (({"paid": True}, ["jobs"]), ({"paid": False}, [])):
        body = {"routing_key": "orders.eu", "payload": payload}
        assert queues == server.json("POST", "/topics/events/route", body)["queues"]
        done = server.json("POST", "/topics/events/messages", body)["messages"]
        assert queues == [each["queue"] for each in done]
    assert 404 == server.call("GET", "/topics/none/subscriptions").status_code


def test_audit_pages(server: Server) -> None:
    """The newest first, page by page, and each row once."""
    for _ in range(5):
        server.json("POST", "/queues/jobs/pause")
    seen, before = [], ""
    while True:
        page = server.json("GET", f"/audit?limit=2{before}")
        seen += [row["id"] for row in page["rows"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert 5 == len(set(seen))
    assert sorted(seen, key=int, reverse=True) == seen


def test_database_away(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says when to come again, and not where the database is."""

    def away(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("postgresql://someone@host:5432 cannot be reached")

    monkeypatch.setattr(server.service._parts.connections, "run", away)
    server.service.queue("jobs")
    answer = server.call("GET", "/consumers")
    assert 503 == answer.status_code
    assert "5" == answer.headers["retry-after"]
    assert "someone" not in answer.text
