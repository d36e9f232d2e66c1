"""An API on the test's database, and clients of each role."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from queue_over_sql import QueueService
from queue_over_sql.service import parts_of
from queue_over_sql.web.api import standalone
from queue_over_sql.web.settings import Role, WebSettings
from queue_over_sql.web.tables import WebStore

HOST = "queues.example.org"


@dataclasses.dataclass
class Server:
    """A server with its clients, in this process."""

    service: QueueService
    store: WebStore
    client: TestClient
    tokens: dict[Role, str]

    def as_(self, role: Role) -> dict[str, str]:
        """The header of somebody of that role."""
        return {"Authorization": f"Bearer {self.tokens[role]}"}

    def call(
        self, method: str, path: str, role: Role = Role.ADMIN, **options: Any
    ) -> httpx2.Response:
        """Ask the API."""
        headers = {**self.as_(role), **options.pop("headers", {})}
        return self.client.request(method, f"/api/v1{path}", headers=headers, **options)

    def json(self, method: str, path: str, body: Any = None, role: Role = Role.ADMIN) -> Any:
        """Ask the API for something that it does."""
        answer = self.call(method, path, role, **({} if body is None else {"json": body}))
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None


MakeServer = Callable[..., Server]


@pytest.fixture
def make_server(sqlite_url: str) -> Iterator[MakeServer]:
    """Make servers on one SQLite file; ``peer`` is where clients come from."""
    with ExitStack() as stack:

        def make(
            url: str = sqlite_url,
            peer: str = "203.0.113.9",
            base: str = f"http://{HOST}",
            **settings: Any,
        ) -> Server:
            service = QueueService(url, consumer_timeout=5.0)
            stack.callback(service.stop)
            given = WebSettings(**settings)
            store = WebStore(parts_of(service), given)
            tokens = {}
            if store.prepare():
                known = {token.name for token in store.tokens()}
                for role in Role:
                    if role.value not in known:
                        tokens[role] = store.add_token(role.value, role)[0]
            client = TestClient(
                standalone(service, given),
                base_url=base,
                client=(peer, 50_000),
                raise_server_exceptions=False,
            )
            stack.enter_context(client)
            return Server(service, store, client, tokens)

        yield make


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """A server that asks for tokens, with a queue named ``jobs``."""
    made = make_server()
    made.service.create_queue("jobs")
    return made
