"""Attacks on the pages, without a browser; docs/dashboard.md lists them all."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from starlette.routing import Route

from queue_over_sql.web import app as app_module
from queue_over_sql.web import server as server_module
from queue_over_sql.web import site as site_module
from queue_over_sql.web.access import COOKIE
from queue_over_sql.web.app import create_app
from queue_over_sql.web.buttons import BUTTONS
from queue_over_sql.web.server import serving
from queue_over_sql.web.settings import Role, WebSettings
from tests.web.conftest import HOST, MakeServer, Server

OWN = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
MakeSite = Callable[..., "Site"]


@dataclasses.dataclass
class Site:
    """The dashboard, and how to ask it as a browser that keeps no cookies by itself."""

    server: Server

    def ask(self, method: str, path: str, cookie: str = "", **options: Any) -> httpx2.Response:
        """Send a request, with the cookie of a session."""
        headers = {"cookie": cookie, **options.pop("headers", {})}
        return self.server.ask(method, path, headers=headers, **options)

    def sign_in(self, role: Role = Role.ADMIN, **fields: str) -> httpx2.Response:
        """Send the form of the login page."""
        form = {"token": self.server.tokens[role], **fields}
        return self.server.ask("POST", "/sign-in", data=form, headers=OWN)

    def session(self, role: Role = Role.ADMIN) -> tuple[str, str]:
        """A new session: its cookie, and what its forms send along."""
        cookie = self.sign_in(role).headers["set-cookie"].split(";")[0]
        found = self.ask("GET", "/api/v1/me", cookie).json()
        return cookie, str(found["csrf"])


@pytest.fixture
def make_site(make_server: MakeServer) -> MakeSite:
    """Make a dashboard with the queue ``jobs``, a token of each role, and these settings."""

    def make(**settings: Any) -> Site:
        server = make_server()
        server.service.create_queue("jobs")
        app = create_app(server.service, WebSettings(**settings))
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False, client=("203.0.113.9", 1))
        client = httpx2.AsyncClient(
            transport=transport, base_url=f"http://{HOST}", cookies=httpx2.Cookies()
        )
        return Site(dataclasses.replace(server, app=app, client=client))

    return make


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """A dashboard that asks for tokens."""
    return make_site()


def test_forms_of_other_sites(site: Site) -> None:
    """An Origin, a Sec-Fetch-Site or a token that is missing or another's: nothing is done."""
    cookie, csrf = site.session()
    _, other = site.session()
    origins = (None, "null", "https://evil.example", f"https://{HOST}.evil.example")
    sites = ("cross-site", "same-site", "none")
    wrong = [{"origin": origin, "sec-fetch-site": "same-origin"} for origin in origins]
    wrong += [{**OWN, "sec-fetch-site": each} for each in sites]
    sent = [(_without_none(headers), csrf) for headers in wrong]
    sent += [(OWN, token) for token in ("", "x", other)]
    for (headers, token), path in itertools.product(sent, ("/do/pause", "/sign-out")):
        form = {"queue": "jobs", "csrf": token}
        answer = site.ask("POST", path, cookie, data=form, headers=headers)
        assert 403 == answer.status_code, headers
        assert answer.headers.get("set-cookie") is None, headers
    for headers in map(_without_none, wrong):
        form = {"token": site.server.tokens[Role.VIEWER]}
        answer = site.ask("POST", "/sign-in", data=form, headers=headers)
        assert 403 == answer.status_code, headers
        assert answer.headers.get("set-cookie") is None, headers
    assert not site.server.service.queue("jobs").stats().paused
    form = {"queue": "jobs", "csrf": csrf}
    assert 303 == site.ask("POST", "/do/pause", cookie, data=form, headers=OWN).status_code


def _without_none(headers: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if value is not None}


def test_each_route_by_role(site: Site) -> None:
    """No role does what is a higher one's, whatever the page offers; a stranger does nothing."""
    signed_in = [role for role in Role if role is not Role.PUBLISHER]
    assert 403 == site.sign_in(Role.PUBLISHER).status_code
    sessions: dict[Role | None, tuple[str, str]] = {role: site.session(role) for role in signed_in}
    sessions[None] = "", ""
    form = {"queue": "jobs", "all": "1", "schedule": "x", "consumer": "x", "like": "1"}
    for (name, (operation, _)), (role, (cookie, csrf)) in itertools.product(
        BUTTONS.items(), sessions.items()
    ):
        sent = {**form, "csrf": csrf}
        answer = site.ask("POST", f"/do/{name}", cookie, data=sent, headers=OWN)
        may = role is not None and role.covers(operation.role)
        expected = {303} if role is None else {200, 303, 404, 409, 422} if may else {403}
        assert answer.status_code in expected, (name, role, answer.status_code)
        assert may or not answer.headers.get("location", "/sign-in").startswith("/queues")
    routes = {route.path for route in site.server.app.routes if isinstance(route, Route)}
    pages = {path.replace("{name}", "jobs").replace("{number}", "1") for path in routes}
    others = {"/do/{action}", "/theme", "/sign-in", "/sign-out", "/events", "/livez", "/readyz"}
    others |= {"/metrics"}
    for page in pages - others:
        assert "/sign-in" == site.ask("GET", page).headers["location"].partition("?")[0]
        seen = site.ask("GET", page, sessions[Role.VIEWER][0]).status_code
        assert (page in {"/audit", "/tokens"}) == (seen == 403), page
    assert 401 == site.ask("GET", "/events").status_code
    assert 401 == site.ask("GET", "/metrics").status_code
    scraped = site.ask("GET", "/metrics", headers=site.server.as_(Role.VIEWER))
    assert 'queue_over_sql_messages{queue="jobs",status="ready"} 0.0' in scraped.text
    assert scraped.headers["content-type"].startswith("text/plain; version=")
    assert 403 == site.ask("GET", "/metrics", headers=site.server.as_(Role.PUBLISHER)).status_code


def test_login_leads_nowhere_else(site: Site) -> None:
    """After a login the browser stays on this server, whatever the address of the login asked."""
    for back in (
        *("https://evil.example", "//evil.example", "/\\evil.example", "\\\\evil.example"),
        *("javascript:alert(1)", "/\t/evil.example", "/x\r\nset-cookie: a=b", "evil.example", ""),
    ):
        answer = site.sign_in(back=back)
        assert 303 == answer.status_code, back
        assert "/" == answer.headers["location"], back
        assert COOKIE in answer.headers["set-cookie"]
    assert "/queues/jobs" == site.sign_in(back="/queues/jobs").headers["location"]


def test_logins_are_limited(site: Site) -> None:
    """After ten wrong tokens an address waits."""
    wrong = [site.sign_in(token="qos_guess").status_code for _ in range(11)]
    assert [401] * 10 + [429] == wrong


def test_a_read_only_server_writes_no_audit(make_site: MakeSite) -> None:
    """Not even that somebody signed in."""
    site, read_only = make_site(), make_site(read_only=True)
    read_only.server.tokens.update(site.server.tokens)
    assert 303 == read_only.sign_in().status_code
    assert [] == site.server.store.audit()
    assert 303 == site.sign_in().status_code
    assert ["sign-in"] == [each.what for each in site.server.store.audit()]


def test_a_token_in_an_address(site: Site) -> None:
    """It counts for nothing: addresses are kept in histories and logs."""
    token = site.server.tokens[Role.ADMIN]
    for name in ("token", "access_token", "csrf", COOKIE):
        answer = site.ask("GET", f"/queues/jobs?{name}={token}")
        assert 303 == answer.status_code
        assert answer.headers.get("set-cookie") is None
        assert 401 == site.ask("GET", f"/api/v1/me?{name}={token}").status_code
    # Not even beside a login page.
    assert token not in site.ask("GET", f"/sign-in?token={token}").text


@pytest.mark.parametrize(
    "path",
    [
        *("../app.py", "%2e%2e/app.py", "..%2fapp.py", "%2e%2e%2f%2e%2e%2fapp.py", "/etc/passwd"),
        *("%2fetc%2fpasswd", "..%5capp.py", "style.css/../../app.py", "style.css%00.png", "", "."),
        *("....//app.py", "%252e%252e%252fapp.py", "../templates/base.html"),
    ],
)
def test_paths_of_static_files(site: Site, path: str) -> None:
    """No path leads out of the folder, nor to a list of it."""
    answer = site.ask("GET", f"/static/{path}")
    assert answer.status_code in {303, 404}, answer.text
    assert "import" not in answer.text


def test_names_of_hosts(site: Site) -> None:
    """No page and no redirection repeats what the Host header says."""
    cookie, _ = site.session()
    for name in ("host", "x-forwarded-host", "x-forwarded-prefix", "x-original-url"):
        for path in (
            "/",
            "/queues/jobs",
            "/queues/jobs/",
            "//evil.example/",
            "/static",
            "/nowhere",
        ):
            for session in ("", cookie):
                answer = site.ask("GET", path, session, headers={name: "evil.example"})
                location = answer.headers.get("location", "/")
                assert location.startswith("/"), (path, location)
                assert not location.startswith("//")
                assert name == "host" or "evil.example" not in answer.text.replace(path, "")


def test_frames_and_types(site: Site) -> None:
    """Each answer forbids to be framed, to be read as something else, and to run what is inline."""
    cookie, _ = site.session()
    for path in ("/", "/sign-in", "/nowhere", "/static/style.css", "/static/none", "/queues/none"):
        for answer in (site.ask("GET", path), site.ask("GET", path, cookie)):
            headers = answer.headers
            policy = headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert "DENY" == headers["x-frame-options"]
            assert "nosniff" == headers["x-content-type-options"]


def test_errors_of_the_server(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that fails in an unforeseen way says nothing of it, and has the headers, too."""

    def broken(*_: Any) -> str:
        raise RuntimeError("secret")

    cookie, _ = site.session()
    monkeypatch.setattr(site_module.Site, "render", broken)
    answer = site.ask("GET", "/", cookie)
    assert 500 == answer.status_code
    assert "secret" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "no-store" == answer.headers["cache-control"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHo",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx",
    ],
    ids=["nothing", "half", "a second half", "half a body that nobody reads"],
)
def test_unfinished_requests(site: Site, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """A connection ends soon without a whole request, however often another byte of it comes."""
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.3)
    with (
        serving(site.server.app) as root,
        socket.create_connection(("127.0.0.1", urlsplit(root).port or 0)) as connection,
    ):
        connection.settimeout(0.05)
        connection.sendall(sent)
        deadline = time.monotonic() + 30
        while _is_open(connection):
            assert time.monotonic() < deadline


def _is_open(connection: socket.socket) -> bool:
    # Sends another byte whenever nothing comes.
    try:
        return bool(connection.recv(10_000))
    except TimeoutError:
        with contextlib.suppress(OSError):
            connection.sendall(b"x")
        return True
    except OSError:
        return False


def test_requests_that_are_no_http(site: Site) -> None:
    """What cannot be read gets an answer with the headers, and the connection ends."""
    with (
        serving(site.server.app) as root,
        socket.create_connection(("127.0.0.1", urlsplit(root).port or 0), 30) as connection,
    ):
        connection.sendall(b"nonsense\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(10_000), b"")).lower()
    assert answer.startswith(b"http/1.1 400 ")
    assert b"content-security-policy: default-src 'none'" in answer
    assert b"x-content-type-options: nosniff" in answer


def test_methods(site: Site) -> None:
    """Nothing is changed by a link, nor by a method that a header or a field claims."""
    cookie, csrf = site.session()
    for method in ("GET", "HEAD", "PUT", "DELETE", "TRACE", "OPTIONS"):
        answer = site.ask(method, f"/do/pause?queue=jobs&csrf={csrf}", cookie, headers=OWN)
        assert 405 == answer.status_code, method
    claims = {"x-http-method-override": "POST", "x-method-override": "POST", **OWN}
    query = f"?_method=POST&queue=jobs&csrf={csrf}"
    assert 405 == site.ask("GET", f"/do/pause{query}", cookie, headers=claims).status_code
    override = {"x-http-method-override": "DELETE", "x-csrf-token": csrf, **OWN}
    answer = site.ask("POST", "/api/v1/queues/jobs", cookie, headers=override, json={})
    assert 405 == answer.status_code
    assert not site.server.service.queue("jobs").stats().paused


def test_what_was_done_cannot_be_made_up(site: Site) -> None:
    """A cookie that another site or a neighbour set puts neither a text nor a form on a page."""
    cookie, csrf = site.session()
    done = site.ask("POST", "/do/pause", cookie, data={"queue": "jobs", "csrf": csrf}, headers=OWN)
    flash = done.headers["set-cookie"].split(";")[0]
    assert "Paused jobs." in site.ask("GET", "/", f"{cookie}; {flash}").text
    other, _ = site.session(Role.OPERATOR)
    text, _, signed = flash.partition("=")[2].partition(".")
    for given in (
        f"{text}.",
        text,
        f".{signed}",
        f"{text[:-4]}AAAA.{signed}",
        "=.x",
        "%00.%00",
    ):
        answer = site.ask("GET", "/", f"{cookie}; queue_over_sql_flash={given}")
        assert 200 == answer.status_code, given
        assert 'role="status"' not in answer.text, given
    assert "Paused jobs." not in site.ask("GET", "/", f"{other}; {flash}").text


def test_large_forms(make_site: MakeSite) -> None:
    """A form over the limit, of too many fields, or with a file is refused."""
    site = make_site(max_body_bytes=200_000)
    cookie, csrf = site.session()
    ask = functools.partial(site.ask, "POST", headers=OWN)
    for path in ("/sign-in", "/do/pause", "/sign-out"):
        assert 413 == ask(path, cookie, data={"csrf": csrf, "token": "x" * 300_000}).status_code
        many = "&".join(f"a{number}=1" for number in range(3_000))
        form = {**OWN, "content-type": "application/x-www-form-urlencoded"}
        assert 400 == site.ask("POST", path, cookie, content=many, headers=form).status_code
        files = {"file": ("x", b"x" * 1_000)}
        assert 400 == ask(path, cookie, data={"csrf": csrf}, files=files).status_code


def test_slow_forms(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends a form byte by byte is not waited for."""
    monkeypatch.setattr(app_module, "BODY_SECONDS", 0.05)
    cookie, _ = site.session()

    async def slow() -> Any:
        yield b"csrf="
        await anyio.sleep_forever()

    form = {**OWN, "content-type": "application/x-www-form-urlencoded"}
    for path in ("/sign-in", "/do/pause", "/sign-out"):
        answer = site.ask("POST", path, cookie, content=slow(), headers=form)
        assert 408 == answer.status_code
