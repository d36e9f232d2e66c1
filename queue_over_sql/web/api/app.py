"""The ASGI application: its routes and its OpenAPI document."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Mount, Route

from queue_over_sql import QueueService, inside
from queue_over_sql.errors import QueueError
from queue_over_sql.values.json_lines import to_json
from queue_over_sql.web.access import Access
from queue_over_sql.web.api import access as tokens
from queue_over_sql.web.api import audit, claims, messages, publishing, queues, schedules, topics
from queue_over_sql.web.api.clients import Clients
from queue_over_sql.web.api.counts import SharedStats
from queue_over_sql.web.api.document import document
from queue_over_sql.web.api.endpoints import (
    IDEMPOTENCY,
    JSON,
    REPLAYED,
    Api,
    Dispatcher,
    Endpoint,
    answer_to,
)
from queue_over_sql.web.changes import Changes
from queue_over_sql.web.idempotency import Idempotency
from queue_over_sql.web.security_headers import Guard
from queue_over_sql.web.settings import WebSettings
from queue_over_sql.web.tables import WebStore
from queue_over_sql.web.threads import Threads

if TYPE_CHECKING:
    from starlette.requests import Request

_log = logging.getLogger(__name__)

GZIP_LEVEL: Final = 4
"""How hard answers are compressed: more than this takes longer than a network saves."""

ENDPOINTS: tuple[Endpoint, ...] = tuple(
    endpoint
    for part in (
        queues.endpoints,
        publishing.endpoints,
        claims.endpoints,
        messages.endpoints,
        messages.archive_endpoints,
        schedules.endpoints,
        topics.endpoints,
        tokens.endpoints,
        audit.endpoints,
    )
    for endpoint in part.all
)
"""All endpoints, in the order of the document."""


def create_api(service: QueueService, access: Access, settings: WebSettings) -> Starlette:
    """Make the API, to mount at ``/api/v1``.

    Call ``state.end_waits()`` before the server shuts down, so that no long poll delays it.

    Args:
        service: the service with the queues; it is neither started nor stopped here.
        access: identifies callers.
        settings: of the server.
    """
    threads = access.threads
    clients, mask = Clients(service, threads), access.mask
    changes = Changes(service, access.store)
    once = Idempotency(service, access.store, settings)
    api = Api(service, access, changes, settings, threads, clients, mask, SharedStats(), once)
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint

    async def described(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        return Response(await threads.run_quick(lambda: _document(root)), 200, None, JSON)

    routes = [
        Route("/openapi.json", described, methods=["GET"]),
        # Fixed paths first: in …/messages/hold, ``hold`` is not the id of a message.
        *(
            _Route(path, Dispatcher(api, by_path[path]))
            for path in sorted(by_path, key=lambda path: path.count("{"))
        ),
    ]
    handlers: dict[Any, Any] = {HTTPException: _refused, Exception: _refused}
    middleware = [Middleware(GZipMiddleware, compresslevel=GZIP_LEVEL)]
    if settings.cors_origins:
        # No credentials: a script of another site has its own token, not the browser's session.
        cors = Middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=sorted({endpoint.method for endpoint in ENDPOINTS}),
            allow_headers=["Authorization", IDEMPOTENCY],
            expose_headers=[REPLAYED, "Retry-After"],
        )
        middleware.insert(0, cors)
    made = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    # A redirect would repeat the Host header, which may say anything.
    made.router.redirect_slashes = False
    made.state.end_waits = clients.end_waits
    return made


def standalone(service: QueueService, settings: WebSettings | None = None) -> Starlette:
    """Make an application with only the API, at ``/api/v1``; it starts and stops the service.

    Args:
        service: the service with the queues.
        settings: of the server.
    """
    settings = settings or WebSettings()
    threads = Threads(settings.threads)
    access = Access(WebStore(service, settings), settings, threads)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            await access.prepare()
            await threads.run(lambda: inside.start_to_serve(service))
        except QueueError as error:
            _log.warning(
                "The service cannot start, so only requests that need no service are answered: %s",
                error,
            )
        yield
        await threads.run(service.stop)

    api = create_api(service, access, settings)
    made = Starlette(
        routes=[Mount("/api/v1", api)],
        middleware=[Middleware(Guard, max_body_bytes=settings.max_body_bytes)],
        lifespan=lifespan,
    )
    made.router.redirect_slashes = False
    made.state.end_waits = api.state.end_waits
    return made


class _Route(Route):
    """A route whose endpoint refuses wrong methods, because it knows all allowed ones."""

    def __init__(self, path: str, endpoint: Dispatcher) -> None:
        super().__init__(path, endpoint)
        self.methods = None


def openapi_document(server: str = "/api/v1") -> dict[str, Any]:
    """The OpenAPI 3.1 document of the API.

    Args:
        server: the path of the API, or its address.
    """
    return document(ENDPOINTS, server)


@functools.lru_cache(maxsize=8)
def _document(server: str) -> bytes:
    return to_json(openapi_document(server)).encode()


async def _refused(request: Request, error: Exception) -> Response:
    del request
    return answer_to(error)
