"""An API on a test's database, and clients of each role."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.applications import Starlette

from queue_over_sql import QueueService
from queue_over_sql.web.api import standalone
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.tables import WebStore

HOST = "queues.example.org"


@dataclasses.dataclass
class Server:
    """A server in this process, and how to ask it; it begins with its first request."""

    service: QueueService
    store: WebStore
    app: Starlette
    tokens: dict[Role, str]
    portal: BlockingPortal
    client: httpx2.AsyncClient

    def as_(self, role: Role) -> dict[str, str]:
        """The header of somebody of that role."""
        return {"Authorization": f"Bearer {self.tokens[role]}"}

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Send a request as it is."""
        send = functools.partial(self.client.request, method, path, **options)
        return self.portal.call(send)

    def call(
        self, method: str, path: str, role: Role = Role.ADMIN, **options: Any
    ) -> httpx2.Response:
        """Ask the API as somebody of that role."""
        headers = {**self.as_(role), **options.pop("headers", {})}
        return self.ask(method, f"/api/v1{path}", headers=headers, **options)

    def json(self, method: str, path: str, body: Any = None, role: Role = Role.ADMIN) -> Any:
        """Ask the API for something that it does."""
        answer = self.call(method, path, role, **({} if body is None else {"json": body}))
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def refused(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        """Send a request that is refused; the status and the problem's code."""
        answer = self.ask(method, path, **options)
        assert "application/problem+json" == answer.headers["content-type"], answer.text
        return answer.status_code, answer.json()["type"].removeprefix("/problems/")


MakeServer = Callable[..., Server]


@pytest.fixture
def make_server(sqlite_url: str) -> Iterator[MakeServer]:
    """Make servers, by default on one SQLite file; ``peer`` is where clients come from."""
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())

        def make(
            url: str = sqlite_url,
            *,
            peer: str = "203.0.113.9",
            base: str = f"http://{HOST}",
            **settings: Any,
        ) -> Server:
            service = QueueService(url, consumer_timeout=5.0)
            stack.callback(service.stop)
            given = WebSettings(**settings)
            store = WebStore(service, given)
            tokens = {}
            if given.open_role is None and store.prepare() and not store.tokens():
                tokens = {role: store.add_token(role.value, role)[0] for role in Role}
            app = standalone(service, given)
            stack.enter_context(portal.wrap_async_context_manager(app.router.lifespan_context(app)))
            transport = httpx2.ASGITransport(app, raise_app_exceptions=False, client=(peer, 50_000))
            client = httpx2.AsyncClient(transport=transport, base_url=base)
            stack.callback(portal.call, client.aclose)
            return Server(service, store, app, tokens, portal, client)

        yield make


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """A server that asks for tokens, with a queue named ``jobs``."""
    made = make_server()
    made.service.create_queue("jobs")
    return made
