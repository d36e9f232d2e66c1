"""Who can come in, and the attacks on access."""

from __future__ import annotations

import ast
import inspect
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response

from queue_over_sql import NotPermitted
from queue_over_sql.queues import tables as ddl
from queue_over_sql.sql.operation import operation
from queue_over_sql.web import access as access_module
from queue_over_sql.web.access import COOKIE, Access, Principal, Refused, check_binding, is_loopback
from queue_over_sql.web.api.app import ENDPOINTS
from queue_over_sql.web.api.examples import BODIES
from queue_over_sql.web.attempts import Attempts
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.threads import Threads
from tests.waiting import eventually
from tests.web.conftest import HOST, MakeServer, Server

OWN = {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}
PUBLISH = "/api/v1/queues/jobs/messages"
LOCAL = "http://127.0.0.1:8000"


def request_of(
    method: str = "POST", headers: dict[str, str] | None = None, *, peer: str = "203.0.113.9"
) -> Request:
    """A request as the server sees it."""
    given = {"host": HOST, **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    scope = {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": "/",
        "root_path": "",
        "query_string": b"",
        "headers": raw,
        "server": (HOST, 80),
        "client": (peer, 1234),
    }
    return Request(scope)


def access_of(server: Server, **settings: Any) -> Access:
    """Access as the dashboard has it, on the same tables."""
    return Access(server.store, WebSettings(**settings), Threads(2))


def logged_in(server: Server, access: Access, token: str) -> tuple[str, str]:
    """The cookie of a new session, and what its answer to the browser was."""
    session = server.portal.call(access.login, request_of(headers=OWN), token)
    response = Response()
    access.set_session(request_of(), response, session)
    return session.cookie, response.headers["set-cookie"]


# -- tokens and roles


LEAST: dict[Role, str] = {
    Role.VIEWER: """
        GET /queues /queues/{queue} /queues/{queue}/stats /queues/{queue}/groups /consumers
        GET /queues/{queue}/messages /queues/{queue}/messages/{id} /queues/{queue}/messages/{id}/why
        GET /queues/{queue}/archive /queues/{queue}/errors
        GET /schedules /schedules/{name:path} /schedules/{name:path}/upcoming
        GET /topics /topics/{topic}/subscriptions
        POST /queues/{queue}/messages/count /queues/{queue}/archive/count /topics/{topic}/route
    """,
    Role.PUBLISHER: """
        POST /queues/{queue}/messages /queues/{queue}/messages/batch
        POST /queues/{queue}/messages/stream /topics/{topic}/messages
    """,
    Role.OPERATOR: """
        POST /queues/{queue}/claim /queues/{queue}/ack /queues/{queue}/nack /queues/{queue}/release
        POST /queues/{queue}/reject /queues/{queue}/extend
        POST /queues/{queue}/messages/hold /queues/{queue}/messages/unhold
        POST /queues/{queue}/messages/reschedule /queues/{queue}/messages/prioritize
        POST /queues/{queue}/messages/max-attempts /queues/{queue}/messages/cancel
        POST /queues/{queue}/messages/delete
        POST /queues/{queue}/archive/requeue /queues/{queue}/archive/delete
        POST /queues/{queue}/pause /queues/{queue}/resume
        POST /queues/{queue}/groups/pause /queues/{queue}/groups/resume
        POST /queues/{queue}/groups/unblock /queues/{queue}/groups/configure
        POST /schedules/{name:path}/pause /schedules/{name:path}/resume /schedules/{name:path}/run
        GET /audit
    """,
    Role.ADMIN: """
        PUT /queues/{queue}
        DELETE /queues/{queue}
        POST /queues/{queue}/purge
        GET /tokens
        POST /tokens
        DELETE /tokens/{name}
    """,
}
"""The least role for each operation; a viewer does not publish, and a publisher sees nothing."""
MAY: dict[Role, set[Role]] = {
    Role.PUBLISHER: {Role.PUBLISHER},
    Role.VIEWER: {Role.VIEWER},
    Role.OPERATOR: {Role.PUBLISHER, Role.VIEWER, Role.OPERATOR},
    Role.ADMIN: set(Role),
}
"""Whose operations a caller of a role may do, as the page on the dashboard says."""


def test_each_operation_by_role(server: Server) -> None:
    """Whoever may not do it is refused before anything is read or changed; strangers are asked."""
    least: dict[tuple[str, str], Role | None] = {("GET", "/me"): None}
    for role, text in LEAST.items():
        for line in text.strip().splitlines():
            method, *paths = line.split()
            least |= {(method, path): role for path in paths}
    assert {(each.method, each.path) for each in ENDPOINTS} == set(least)
    server.service.create_queue("orders", archive="all", group_limit=1)
    server.service.create_topic("events").subscribe("orders", "#")
    server.service.schedules.add("daily", "orders", {"order": 1}, every=3600)
    given = {"queue": "orders", "topic": "events", "name:path": "daily", "name": "ada", "id": "1"}
    # What ends them comes last.
    for each in sorted(ENDPOINTS, key=lambda each: each.method == "DELETE"):
        path = re.sub(r"\{([^}]*)\}", lambda found: given[found[1]], each.path)
        path += {"drop_queue": "?confirm=orders"}.get(each.id, "")
        body = BODIES.get(each.id)
        sent: dict[str, Any] = {} if body is None else {"json": body}
        if isinstance(body, str):
            sent = {"content": body, "headers": {"Content-Type": "application/x-ndjson"}}
        needed = least[each.method, each.path]
        assert (401, "login-needed") == server.refused(each.method, f"/api/v1{path}", **sent)
        # The lowest first: whoever is refused has changed nothing that the next one needs.
        for role in (Role.PUBLISHER, Role.VIEWER, Role.OPERATOR, Role.ADMIN):
            may = needed is None or needed in MAY[role]
            answer = server.call(each.method, path, role, **sent)
            what = (each.method, path, role, answer.text)
            assert answer.status_code < 500, what
            if may:
                assert answer.status_code not in {401, 403}, what
            else:
                assert (403, "/problems/role-needed") == (
                    answer.status_code,
                    answer.json()["type"],
                ), what


def test_no_token(server: Server) -> None:
    """Whoever says nothing is asked to, by a header that tools know."""
    answer = server.ask("GET", "/api/v1/queues")
    assert 401 == answer.status_code
    assert 'Bearer realm="queue_over_sql"' == answer.headers["www-authenticate"]


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Bearer qos_wrong", "Basic YTpi", "Bearer " + "x" * 100_000]
)
def test_wrong_token(server: Server, given: str) -> None:
    """Nothing that is no token is taken for one; what a proxy asks for is not ours."""
    code = "wrong-token" if given.startswith("Bearer") else "login-needed"
    assert (401, code) == server.refused("GET", "/api/v1/queues", headers={"Authorization": given})


def test_expired_token(server: Server) -> None:
    """An expired token is refused, and so is one that was removed."""
    brief = server.store.add_token("brief", Role.ADMIN, timedelta(microseconds=1))[0]
    longer = server.store.add_token("longer", Role.ADMIN, timedelta(hours=1))[0]
    access = access_of(server)

    def known(token: str) -> Principal | None:
        access.forget_tokens()
        headers = {"Authorization": f"Bearer {token}"}
        return server.portal.call(access.principal, request_of(headers=headers))

    with pytest.raises(Refused):
        known(brief)
    assert known(longer) is not None
    assert server.store.remove_token("longer")
    with pytest.raises(Refused):
        known(longer)


def test_tokens_are_not_stored(server: Server, tmp_path: Path) -> None:
    """The database has no token, only its hash; no answer but the first has it."""
    made = server.json("POST", "/tokens", {"name": "ada", "role": "viewer", "expires": 60})
    assert made["token"] not in server.call("GET", "/tokens").text
    assert made["token"] not in server.call("GET", "/audit").text
    assert made["token"].encode() not in (tmp_path / "queues.db").read_bytes()
    assert 409 == server.call("POST", "/tokens", json={"name": "ada", "role": "viewer"}).status_code


def test_secrets_are_compared_in_constant_time() -> None:
    """No secret is compared by ``==``: the one comparison is that of the standard library."""
    tree = ast.parse(inspect.getsource(access_module))
    secret = {"token_hash", "signature", "csrf", "expected", "given"}
    compared = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops)
        and any(
            getattr(inner, "attr", getattr(inner, "id", None)) in secret for inner in ast.walk(node)
        )
    ]
    assert [] == compared
    assert "hmac.compare_digest" in inspect.getsource(access_module._equal)


# -- rate limit


def test_wrong_tokens_are_limited(server: Server) -> None:
    """After ten wrong ones an address waits; who has a right one is let in meanwhile."""
    wrong = {"Authorization": "Bearer qos_guess"}
    for _ in range(10):
        assert 401 == server.refused("GET", "/api/v1/me", headers=wrong)[0]
    answer = server.ask("GET", "/api/v1/me", headers=wrong)
    assert 429 == answer.status_code
    assert 0 < int(answer.headers["retry-after"]) <= 60
    assert 200 == server.call("GET", "/me").status_code


def test_logins_are_limited(server: Server) -> None:
    """After ten wrong ones an address waits; the right token logs in all the while."""
    access = access_of(server)

    def login(token: str, peer: str = "203.0.113.9") -> int:
        try:
            server.portal.call(access.login, request_of(headers=OWN, peer=peer), token)
        except Refused as refused:
            return refused.status
        return 200

    right = server.tokens[Role.VIEWER]
    assert [401] * 10 == [login("qos_guess") for _ in range(10)]
    assert 429 == login("qos_guess")
    assert 200 == login(right)
    assert 200 == login(right, "198.51.100.1")


def test_attempts_are_counted_in_bounds() -> None:
    """A flood from many addresses takes no memory, and one network of IPv6 is one address."""
    attempts = Attempts(most=2, addresses=100)
    for number in range(1_000):
        attempts.count(f"198.51.{number // 256}.{number % 256}")
    assert 100 == len(attempts._counts)
    attempts.count("2001:db8::1")
    attempts.count("2001:db8::ffff")
    assert attempts.blocked_for("2001:db8::2") is not None
    assert attempts.blocked_for("2001:db8:1::2") is None


# -- sessions and forms of other sites


def test_session(server: Server) -> None:
    """A login makes a cookie that scripts cannot read, and that outlives the server."""
    access = access_of(server)
    cookie, answer = logged_in(server, access, server.tokens[Role.OPERATOR])
    assert {"httponly", "path=/", "samesite=lax"} <= set(answer.lower().split("; "))
    again = access_of(server)
    who = server.portal.call(again.principal, request_of(headers={"cookie": f"{COOKIE}={cookie}"}))
    assert who is not None
    assert "operator" == who.name
    assert Role.OPERATOR == who.role
    assert "session" == who.way
    answered = server.ask("GET", "/api/v1/me", headers={"Cookie": f"{COOKIE}={cookie}"}).json()
    assert who.csrf == answered["csrf"]


def test_session_is_secure_under_https(server: Server) -> None:
    """Under TLS, also one that a proxy ends, the cookie never goes over plain HTTP."""
    origins = ["https://queues.example.org"]
    access = access_of(server, origins=origins)
    form = request_of(headers={"Origin": origins[0]})
    session = server.portal.call(access.login, form, server.tokens[Role.VIEWER])
    response = Response()
    access.set_session(form, response, session)
    assert "secure" in response.headers["set-cookie"].lower()


def test_session_dies_with_its_token(server: Server) -> None:
    """So it does when the token is removed, and when another of its name is made."""
    access = access_of(server)
    cookie, _ = logged_in(server, access, server.tokens[Role.VIEWER])
    server.store.remove_token("viewer")
    server.store.add_token("viewer", Role.ADMIN)
    access.forget_tokens()
    asked = request_of(headers={"cookie": f"{COOKIE}={cookie}"})
    assert server.portal.call(access.principal, asked) is None


def test_session_ends(server: Server) -> None:
    """After its hours a session is over, and no session outlives its token."""
    access = access_of(server, session_hours=1e-9)
    cookie, _ = logged_in(server, access, server.tokens[Role.VIEWER])
    asked = request_of(headers={"cookie": f"{COOKIE}={cookie}"})
    assert server.portal.call(access.principal, asked) is None
    brief, token = server.store.add_token("brief", Role.VIEWER, timedelta(minutes=5))
    long = access_of(server)
    session = server.portal.call(long.login, request_of(headers=OWN), brief)
    assert session.until == token.expires_at


def test_session_fixation(server: Server) -> None:
    """Each login has a session of its own, whatever cookie came with it; no made-up one counts."""
    access = access_of(server)
    first, _ = logged_in(server, access, server.tokens[Role.VIEWER])
    second, _ = logged_in(server, access, server.tokens[Role.VIEWER])
    assert first != second
    name, ends, number, signature = first.split(".")
    forged = [
        "",
        "....",
        "fixed",
        f"{name}.9999999999.{number}.{signature}",
        f"{name}.{ends}.other.{signature}",
        f"YWRtaW4.{ends}.{number}.{signature}",
        f"{name}.{'9' * 400}.{number}.{signature}",
        f"%ff.{ends}.{number}.{signature}",
    ]
    for cookie in forged:
        asked = request_of(headers={"cookie": f"{COOKIE}={cookie}"})
        assert server.portal.call(access.principal, asked) is None, cookie


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},
        {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-site"},
        {"Origin": f"http://{HOST}:8080"},
        {"Origin": f"http://{HOST}.evil.example"},
        {"Origin": f"http://evil@{HOST}"},
        {"Origin": "null"},
        {},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_cross_site_form(server: Server, headers: dict[str, str]) -> None:
    """A form or script of another site does nothing, though the browser sends the cookie along."""
    access = access_of(server)
    cookie, _ = logged_in(server, access, server.tokens[Role.ADMIN])
    who = server.portal.call(access.principal, request_of(headers={"cookie": f"{COOKIE}={cookie}"}))
    assert who is not None
    sent = {**headers, "Cookie": f"{COOKIE}={cookie}", "X-CSRF-Token": str(who.csrf)}
    assert (403, "other-origin") == server.refused(
        "POST", PUBLISH, headers=sent, json={"payload": 1}
    )
    with pytest.raises(Refused, match="page of this web server"):
        server.portal.call(access.login, request_of(headers=headers), server.tokens[Role.VIEWER])
    assert 0 == server.service.queue("jobs").messages().count()


def test_form_needs_its_token(server: Server) -> None:
    """From a page of this server, what it sends has the session's own token, and no other's."""
    access = access_of(server)
    cookie, _ = logged_in(server, access, server.tokens[Role.ADMIN])
    other, _ = logged_in(server, access, server.tokens[Role.ADMIN])

    def csrf_of(session: str) -> str:
        asked = request_of(headers={"cookie": f"{COOKIE}={session}"})
        who = server.portal.call(access.principal, asked)
        return str(who and who.csrf)

    sent = {**OWN, "Cookie": f"{COOKIE}={cookie}"}
    for wrong in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": csrf_of(other)}):
        assert (403, "csrf") == server.refused(
            "POST", PUBLISH, headers={**sent, **wrong}, json={"payload": 1}
        )
    right = {**sent, "X-CSRF-Token": csrf_of(cookie)}
    assert 201 == server.ask("POST", PUBLISH, headers=right, json={"payload": 1}).status_code


def test_form_is_no_json(server: Server) -> None:
    """What a form can send without a preflight is not read as JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {**server.as_(Role.ADMIN), "Content-Type": kind}
        answer = server.refused("POST", PUBLISH, headers=headers, content=b'{"payload": 1}')
        assert 415 == answer[0]


# -- this machine alone


def test_local_mode(make_server: MakeServer) -> None:
    """At this machine nobody needs a token until there is one; pages change things at will."""
    server = make_server(peer="127.0.0.1", base=LOCAL, open_role=Role.OPERATOR)
    server.service.create_queue("jobs")
    who = server.ask("GET", "/api/v1/me").json()
    assert "local" == who["name"]
    assert "operator" == who["role"]
    assert "local" == who["way"]
    page = {"Origin": LOCAL, "Sec-Fetch-Site": "same-origin", "X-CSRF-Token": who["csrf"]}
    assert 201 == server.ask("POST", PUBLISH, headers=page, json={"payload": 1}).status_code
    assert (403, "other-origin") == server.refused("POST", PUBLISH, json={"payload": 1})
    server.store.add_token("ada", Role.VIEWER)
    eventually(
        lambda: server.refused("POST", PUBLISH, headers=page, json={}) == (401, "login-needed"),
        "the first token ends it",
    )


def test_tables_that_are_missing(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tables nobody logs in, but whoever needs no token looks; and help is noticed."""
    ensure = ddl.ensure_tables

    @operation(atomic=True, creates=True)
    def forbidden(connection: Any, tables: Any, dialect: Any) -> None:
        if "_web_" in tables[0].name:
            raise NotPermitted("no")
        ensure(connection, tables, dialect)

    with monkeypatch.context() as patched:
        patched.setattr(ddl, "ensure_tables", forbidden)
        server = make_server(peer="127.0.0.1", base=LOCAL, open_role=Role.ADMIN)
        stale = {"Cookie": f"{COOKIE}=a.1.b.c"}
        assert server.ask("GET", "/api/v1/queues", headers=stale).is_success
        assert (503, "no-token-table") == server.refused(
            "GET", "/api/v1/queues", headers={"Authorization": "Bearer qos_x"}
        )
        assert (503, "no-token-table") == server.refused("GET", "/api/v1/audit")
    monkeypatch.setattr(access_module, "_RETRY_SECONDS", -1.0)
    assert server.ask("GET", "/api/v1/audit").is_success


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "10.0.0.1", "[::2]"]
)
def test_dns_rebinding(make_server: MakeServer, host: str) -> None:
    """A name of another site that leads to this machine is refused, to whoever has a token too."""
    server = make_server(peer="127.0.0.1", base=LOCAL, open_role=Role.ADMIN)
    for headers in ({}, {"Authorization": "Bearer qos_x"}):
        answer = server.refused("GET", "/api/v1/queues", headers={**headers, "Host": host})
        assert (403, "other-host") == answer


def test_local_mode_behind_a_proxy(make_server: MakeServer) -> None:
    """A proxy at this machine, which may well say that the host is this one, opens it to nobody."""
    server = make_server(peer="127.0.0.1", base=LOCAL, open_role=Role.ADMIN)
    for header in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"):
        answer = server.refused("GET", "/api/v1/queues", headers={header: "203.0.113.9"})
        assert (403, "through-a-proxy") == answer
    with pytest.raises(ValueError, match="open_role"):
        WebSettings(proxy_header="X-User", proxy_from=["127.0.0.1"], open_role=Role.VIEWER)


def test_local_mode_is_not_for_others(make_server: MakeServer) -> None:
    """Whoever comes from elsewhere after all is asked for a token."""
    server = make_server(peer="198.51.100.7", base=LOCAL, open_role=Role.ADMIN)
    assert 401 == server.refused("GET", "/api/v1/queues")[0]


def test_binding() -> None:
    """Without a way to say who asks, no address of others is served."""
    nobody, local = WebSettings(), WebSettings(open_role=Role.VIEWER)
    proxy = WebSettings(proxy_header="X-User", proxy_from=["10.0.0.0/8"])
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        check_binding(host, local, has_tokens=False)
    for host in ("0.0.0.0", "::", "192.0.2.1", "", "queues.example.org"):  # noqa: S104 - refused
        assert not is_loopback(host)
        for has_tokens in (True, False):
            with pytest.raises(ValueError, match="without a token"):
                check_binding(host, local, has_tokens=has_tokens)
        with pytest.raises(ValueError, match="token add"):
            check_binding(host, nobody, has_tokens=False)
        check_binding(host, nobody, has_tokens=True)
        check_binding(host, proxy, has_tokens=False)


# -- behind a proxy

PROXY = {
    "proxy_header": "X-Forwarded-User",
    "proxy_role_header": "X-Role",
    "proxy_from": ["10.1.0.0/16"],
}


def test_proxy(make_server: MakeServer) -> None:
    """A listed proxy says who asks, as what, and from where."""
    server = make_server(peer="10.1.2.3", **PROXY)
    headers = {"X-Forwarded-User": "ada", "X-Forwarded-For": "1.1.1.1, 203.0.113.7"}
    who = server.ask("GET", "/api/v1/me", headers=headers).json()
    assert "ada" == who["name"]
    assert "viewer" == who["role"]
    assert "proxy" == who["way"]
    form = {**headers, **OWN, "X-Role": "admin", "X-CSRF-Token": who["csrf"]}
    made = server.ask("PUT", "/api/v1/queues/jobs", headers=form, json={})
    assert made.is_success, made.text
    row = server.json("GET", "/audit")["rows"][0]
    assert "ada" == row["who"]
    assert "203.0.113.7" == row["address"]


def test_proxy_header_is_not_believed_from_others(make_server: MakeServer) -> None:
    """Whoever reaches the server around the proxy, or through it, cannot name themselves."""
    spoofed = {"X-Forwarded-User": "admin", "X-Role": "admin", "X-Forwarded-For": "10.1.2.3"}
    around = make_server(peer="203.0.113.9", **PROXY)
    assert 401 == around.refused("GET", "/api/v1/me", headers=spoofed)[0]
    through = make_server(peer="10.1.2.3", **PROXY)
    twice = [("X-Forwarded-User", "ada"), ("X-Forwarded-User", "admin")]
    assert 401 == through.refused("GET", "/api/v1/me", headers=twice)[0]
    unknown = {"X-Forwarded-User": "ada", "X-Role": "root"}
    assert 401 == through.refused("GET", "/api/v1/me", headers=unknown)[0]
    plain = make_server(peer="10.1.2.3")
    assert 401 == plain.refused("GET", "/api/v1/me", headers=spoofed)[0]
    with pytest.raises(ValueError, match="proxy_from"):
        WebSettings(proxy_header="X-User")


def test_two_servers_behind_a_proxy(make_server: MakeServer) -> None:
    """With one secret and its origins, they take each other's forms, whatever Host is set."""
    shared = {**PROXY, "secret": "a long one", "origins": ["https://queues.example.org"]}
    bases = ("http://one.internal:8080", "http://two.internal:8080")
    one, two = (make_server(peer="10.1.2.3", base=base, **shared) for base in bases)
    two.tokens = one.tokens
    proxied = {"X-Forwarded-User": "ada", "X-Role": "admin"}
    own = {"Origin": "https://queues.example.org", "Sec-Fetch-Site": "same-origin"}
    csrf = one.ask("GET", "/api/v1/me", headers=proxied).json()["csrf"]
    form = {**proxied, **own, "X-CSRF-Token": csrf}
    assert two.ask("PUT", "/api/v1/queues/jobs", headers=form, json={}).is_success
    cookie, _ = logged_in(one, access_of(one, **shared), one.tokens[Role.ADMIN])
    session = {"cookie": f"{COOKIE}={cookie}"}
    csrf = one.ask("GET", "/api/v1/me", headers=session).json()["csrf"]
    form = {**session, **own, "X-CSRF-Token": csrf}
    assert two.ask("PUT", "/api/v1/queues/jobs", headers=form, json={}).is_success
    other = make_server(peer="10.1.2.3", base=bases[0], **{**shared, "secret": "another"})
    alien = other.ask("GET", "/api/v1/me", headers=proxied).json()["csrf"]
    form = {**proxied, **own, "X-CSRF-Token": alien}
    assert (403, "csrf") == two.refused("PUT", "/api/v1/queues/jobs", headers=form, json={})


# -- what holds for all


def test_headers(server: Server) -> None:
    """Each answer, errors included, tells browsers to run nothing, frame nothing, keep nothing."""
    for path in ("/api/v1/me", "/api/v1/nowhere", "/nowhere", "/api/v1/openapi.json"):
        headers = server.ask("GET", path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "nosniff" == headers["x-content-type-options"]
        assert "no-store" == headers["cache-control"]
        assert "same-origin" == headers["referrer-policy"]
        assert "DENY" == headers["x-frame-options"]


def test_oversize_body(make_server: MakeServer) -> None:
    """A body over the limit is refused before it is read, whatever its length claims to be."""
    server = make_server(max_body_bytes=1_000)
    server.service.create_queue("jobs")

    async def endless() -> Any:
        for _ in range(1_000):
            yield b"x" * 100

    kinds = {**server.as_(Role.ADMIN), "Content-Type": "application/json"}
    for body in (b'{"payload": "' + b"x" * 2_000 + b'"}', endless()):
        assert 413 == server.refused("POST", PUBLISH, headers=kinds, content=body)[0]
    line = {**kinds, "Content-Type": "application/x-ndjson"}
    assert 413 == server.refused("POST", f"{PUBLISH}/stream", headers=line, content=endless())[0]


@pytest.mark.parametrize(
    "deep",
    [
        b"[" * 200 + b"]" * 200,
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
        # A text without an end, of which each quote might be the beginning.
        b"[" * 101 + b'"' + b'\\"' * 1_000_000 + b"\\",
    ],
)
def test_deep_json(server: Server, deep: bytes) -> None:
    """JSON that is nested without end breaks nothing."""
    headers = {**server.as_(Role.ADMIN), "Content-Type": "application/json"}
    body = b'{"payload": ' + deep + b"}"
    assert (422, "not-valid") == server.refused("POST", PUBLISH, headers=headers, content=body)
    quoted = b'{"payload": "' + b"[" * 1_000 + b'"}'
    assert server.ask("POST", PUBLISH, headers=headers, content=quoted).is_success


@pytest.mark.parametrize(
    "name",
    [
        *(
            "..",
            "%2e%2e",
            "..%2f..%2fetc",
            "jobs%00",
            "jobs%0a",
            "JOBS",
            "jobs'--",
            "%2f",
            "a" * 41,
        ),
        *("%ff", "over_sql_queues", "jobs_archive", "jobs;drop", "%F0%9F%92%A9"),
    ],
)
def test_path_tricks(server: Server, name: str) -> None:
    """No name leads to anything but a queue."""
    for method, path in (("GET", ""), ("GET", "/messages"), ("POST", "/claim"), ("GET", "/stats")):
        answer = server.call(method, f"/queues/{name}{path}")
        assert answer.status_code in {404, 405}, (answer.status_code, answer.text)
    assert server.call("PUT", f"/queues/{name}", json={}).status_code in {404, 405, 422}


def test_read_only(make_server: MakeServer) -> None:
    """Nothing can be changed, by nobody, where the setting says so."""
    make_server().service.create_queue("jobs").publish(1)
    server = make_server(read_only=True)
    token = server.store.add_token("root", Role.ADMIN)[0]
    headers = {"Authorization": f"Bearer {token}"}
    assert server.ask("GET", "/api/v1/queues/jobs/messages", headers=headers).is_success
    assert server.ask(
        "POST", "/api/v1/queues/jobs/messages/count", headers=headers, json={}
    ).is_success
    for path in ("/queues/jobs/messages", "/queues/jobs/claim", "/queues/jobs/pause"):
        answer = server.refused("POST", f"/api/v1{path}", headers=headers, json={})
        assert (403, "read-only") == answer


def test_no_internals_are_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails inside is in the log, and nowhere else."""

    def broken(*_: object) -> None:
        msg = "secret detail"
        raise RuntimeError(msg)

    monkeypatch.setattr(type(server.service), "queue", broken)
    answer = server.call("GET", "/queues/jobs/stats")
    assert 500 == answer.status_code
    assert "secret" not in answer.text
    assert isinstance(answer, httpx2.Response)


def test_other_sites(make_server: MakeServer) -> None:
    """Scripts of listed sites may use the API with a token, after a preflight; by default none."""
    asked = {
        "Origin": "https://shop.example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
    }
    closed = make_server()
    preflight = closed.ask("OPTIONS", PUBLISH, headers=asked)
    assert 405 == preflight.status_code
    assert "access-control-allow-origin" not in preflight.headers
    server = make_server(cors_origins=["https://shop.example.org"])
    server.tokens = closed.tokens
    server.service.create_queue("jobs")
    preflight = server.ask("OPTIONS", PUBLISH, headers=asked)
    assert 200 == preflight.status_code
    assert "https://shop.example.org" == preflight.headers["access-control-allow-origin"]
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "Idempotency-Key" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in preflight.headers
    assert "nosniff" == preflight.headers["x-content-type-options"]
    origin = {"Origin": "https://shop.example.org"}
    for status, headers in ((201, server.as_(Role.OPERATOR)), (401, {})):
        answer = server.ask("POST", PUBLISH, headers={**origin, **headers}, json={"payload": 1})
        assert status == answer.status_code
        assert "https://shop.example.org" == answer.headers["access-control-allow-origin"]
    other = server.ask("OPTIONS", PUBLISH, headers={**asked, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    with pytest.raises(ValueError, match="without a token"):
        WebSettings(cors_origins=["*"], open_role=Role.VIEWER)
    for wrong in ("shop.example.org", "https://shop.example.org/", "https://Shop.example.org", ""):
        with pytest.raises(ValueError, match="not an origin"):
            WebSettings(origins=[wrong])


def test_compressed_answers(server: Server) -> None:
    """Long answers of the API are compressed for who accepts it, also streams; short ones never."""
    jobs = server.service.queue("jobs")
    jobs.publish_many([{"n": 1, "text": "x" * 200} for _ in range(50)])
    for accept in ("application/json", "application/x-ndjson"):
        sent = {}
        for encoding in ("gzip", "identity"):
            headers = {"Accept-Encoding": encoding, "Accept": accept}
            answer = server.call("GET", "/queues/jobs/messages", headers=headers)
            assert 50 == answer.text.count('"payload"')
            assert (encoding == "gzip") == (answer.headers.get("content-encoding") == "gzip")
            sent[encoding] = answer.num_bytes_downloaded
        assert sent["gzip"] < sent["identity"] / 5
    assert "content-encoding" not in server.call("GET", "/me").headers


# -- rights per queue


def test_publisher(server: Server) -> None:
    """Who may only publish sees nothing, claims nothing and cannot sign in."""
    jobs = server.service.create_queue("orders", archive="all")
    token = server.store.add_token("shop", Role.PUBLISHER)[0]
    headers = {"Authorization": f"Bearer {token}"}
    path = "/api/v1/queues/orders"
    one = server.ask("POST", f"{path}/messages", headers=headers, json={"payload": 1})
    assert 201 == one.status_code
    lines = {**headers, "Content-Type": "application/x-ndjson"}
    streamed = server.ask("POST", f"{path}/messages/stream", headers=lines, content='{"payload":2}')
    assert 1 == streamed.json()["created"]
    assert "publisher" == server.ask("GET", "/api/v1/me", headers=headers).json()["role"]
    for method, refused in (
        ("GET", ""),
        ("GET", "/messages"),
        ("GET", "/stats"),
        ("POST", "/claim"),
    ):
        answer = server.refused(method, f"{path}{refused}", headers=headers)
        assert (403, "role-needed") == answer, refused
    with pytest.raises(Refused, match="for programs"):
        server.portal.call(access_of(server).login, request_of(headers=OWN), token)
    assert 2 == jobs.stats().ready


def test_rights_per_queue(server: Server) -> None:
    """A token with patterns is for these queues only, whatever its role, and for no page."""
    for name in ("orders", "orders_eu", "mail"):
        server.service.create_queue(name).publish(1)
    server.service.create_topic("events").subscribe("mail", "#")
    made = server.json("POST", "/tokens", {"name": "eu", "role": "admin", "queues": ["orders*"]})
    assert ["orders*"] == made["queues"]
    headers = {"Authorization": f"Bearer {made['token']}"}

    def ask(method: str, path: str, **options: Any) -> int:
        return server.ask(method, f"/api/v1{path}", headers=headers, **options).status_code

    assert ["orders*"] == server.ask("GET", "/api/v1/me", headers=headers).json()["queues"]
    listed = server.ask("GET", "/api/v1/queues", headers=headers).json()["queues"]
    assert ["orders", "orders_eu"] == [queue["name"] for queue in listed]
    body = {"json": {"payload": 1}}
    assert [201, 201, 403] == [
        ask("POST", f"/queues/{name}/messages", **body) for name in ("orders", "orders_eu", "mail")
    ]
    assert [200, 403] == [ask("POST", f"/queues/{name}/claim") for name in ("orders", "mail")]
    assert [200, 403] == [ask("PUT", f"/queues/{name}", json={}) for name in ("orders_x", "x")]
    # Whatever names no queue in its path could reach others.
    documented = {(each.method, each.path) for each in ENDPOINTS if "{queue}" not in each.path}
    for method, path in documented - {("GET", "/me"), ("GET", "/queues")}:
        given = path.replace("{topic}", "events").replace("{name:path}", "x").replace("{name}", "x")
        assert 403 == ask(method, given), (method, path)
    with pytest.raises(Refused, match="some queues only"):
        server.portal.call(access_of(server).login, request_of(headers=OWN), made["token"])
    with pytest.raises(ValueError, match="patterns"):
        server.store.add_token("x", Role.VIEWER, queues=["Orders"])


def test_rights_on_queues_that_a_request_names(server: Server) -> None:
    """Dead letters and replies go only to queues that the token is for, by name or title."""
    for name in ("orders", "orders_dead", "mail", "Orders of all"):
        server.service.create_queue(name)
    token = server.store.add_token("shop", Role.ADMIN, queues=["orders*"])[0]
    headers = {"Authorization": f"Bearer {token}"}
    lines = {"Content-Type": "application/x-ndjson"}

    def ask(method: str, path: str, **options: Any) -> int:
        given = headers | options.pop("headers", {})
        answer = server.ask(method, f"/api/v1/queues/orders{path}", headers=given, **options)
        if answer.status_code == 403:
            assert "/problems/queue-not-allowed" == answer.json()["type"]
        return answer.status_code

    for receiver, status in (("mail", 403), ("none_such", 403), ("orders_dead", 200), (None, 200)):
        assert status == ask("PUT", "", json={"dead_letter_queue": receiver}), receiver
    for reply_to, statuses in {
        "mail": (403, 403, 403),
        "*": (403, 403, 403),
        "orders_dead": (201, 200, 200),
        "Orders of all": (201, 200, 200),
    }.items():
        one = {"payload": 1, "headers": {"reply_to": reply_to}}
        assert statuses == (
            ask("POST", "/messages", json=one),
            ask("POST", "/messages/batch", json=[{"payload": 1}, one]),
            ask("POST", "/messages/stream", headers=lines, content=json.dumps(one)),
        ), reply_to
    # An administrator of all queues chose another one, and this one sends back what GET shows.
    server.service.create_queue("orders", dead_letter_queue="mail")
    shown = server.ask("GET", "/api/v1/queues/orders", headers=headers).json()
    assert "mail" == shown["dead_letter_queue"]
    assert 200 == ask("PUT", "", json=shown)


def test_a_new_token_is_good_at_once(server: Server) -> None:
    """On each server, also one that has just read the tokens; a removed one ends in a second."""
    access = access_of(server)
    assert server.portal.call(access.principal, request_of()) is None
    wrong = {"Authorization": "Bearer qos_wrong"}
    with pytest.raises(Refused):
        server.portal.call(access.principal, request_of(headers=wrong))
    token = server.store.add_token("new", Role.VIEWER)[0]
    right = {"Authorization": f"Bearer {token}"}
    who = server.portal.call(access.principal, request_of(headers=right))
    assert who is not None
    assert "new" == who.name


def test_the_last_admin_stays(server: Server) -> None:
    """Their token goes only if the caller says so; an expired one counts for none."""
    server.store.add_token("brief", Role.ADMIN, timedelta(microseconds=1))
    answer = server.call("DELETE", "/tokens/admin")
    assert (409, "/problems/last-admin-token") == (answer.status_code, answer.json()["type"])
    assert "last one of an admin" in answer.json()["detail"]
    server.json("DELETE", "/tokens/brief")
    second = server.json("POST", "/tokens", {"name": "second", "role": "admin"})
    server.json("DELETE", "/tokens/second")
    assert second["token"]
    server.json("DELETE", "/tokens/admin?last_admin=true")
    assert {"publisher", "viewer", "operator"} == {each.name for each in server.store.tokens()}


def test_sign_out_ends_sessions_everywhere(server: Server) -> None:
    """A copy of the cookie is worth nothing afterwards, on the other servers after a second."""
    here, there = access_of(server), access_of(server)
    cookie, _ = logged_in(server, here, server.tokens[Role.VIEWER])
    other, _ = logged_in(server, here, server.tokens[Role.OPERATOR])
    asked = request_of(headers={"cookie": f"{COOKIE}={cookie}"})
    who = server.portal.call(there.principal, asked)
    assert who is not None
    response = Response()
    server.portal.call(here.sign_out, asked, response, who)
    assert "Max-Age=0" in response.headers["set-cookie"]
    assert server.portal.call(here.principal, asked) is None
    eventually(lambda: server.portal.call(there.principal, asked) is None, "the session ends")
    for access in (here, there):
        kept = request_of(headers={"cookie": f"{COOKIE}={other}"})
        assert server.portal.call(access.principal, kept) is not None
    again, _ = logged_in(server, here, server.tokens[Role.VIEWER])
    asked = request_of(headers={"cookie": f"{COOKIE}={again}"})
    assert server.portal.call(there.principal, asked) is not None
