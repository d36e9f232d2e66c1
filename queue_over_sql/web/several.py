"""Several databases in one dashboard: an application for each, under its name.

They share nothing: each has its own tokens, sessions and audit, so that a token of one database is
none of another one. One that does not answer keeps no other from being served.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from queue_over_sql.errors import QueueError, shown
from queue_over_sql.web.problems import Problem
from queue_over_sql.web.security_headers import Guard
from queue_over_sql.web.static_files import KeptFiles, static_path

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from queue_over_sql.web.settings import WebSettings

_log = logging.getLogger(__name__)
_FIRST_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 2.0
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


def check_database_name(name: str) -> str:
    """Return a name that can be a path.

    Raises:
        ValueError: it cannot.
    """
    if not _NAME.fullmatch(name):
        msg = (
            "the name of a database is a part of its address: 1 to 40 lower-case letters, digits, "
            f"_ and -, not {shown(name)}"
        )
        raise ValueError(msg)
    return name


class Pending:
    """The application of a database: until that answers, one that says so.

    Args:
        make: makes the application. It raises while it cannot.
        settings: of the application.
    """

    def __init__(self, make: Callable[[], Starlette], settings: WebSettings) -> None:
        self._make = make
        self._name = settings.database
        self._over = threading.Event()
        self._tried = threading.Event()
        self._failed: Exception | None = None
        self._problem = ""
        self._without = _without_database(settings)
        self.made: Starlette | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await (self.made or self._without)(scope, receive, send)

    def connect(self) -> None:
        """Make the application in a thread as soon as the database answers."""
        threading.Thread(target=self._keep_trying, name="connecting", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait at most so long for the first attempt.

        Raises:
            Exception: of ``make``, unless it is a ``QueueError``.
        """
        if not self._tried.wait(seconds):
            self._note("it has not answered yet")
        if self._failed is not None:
            raise self._failed

    def end_waits(self) -> None:
        """End the long polls of the application, and do not try to make it any more."""
        self._over.set()
        if self.made is not None:
            self.made.state.end_waits()

    def _keep_trying(self) -> None:
        while not self._over.is_set():
            try:
                self.made = self._make()
            except QueueError as error:
                self._note(str(error))
            except Exception as error:  # noqa: BLE001 - the other databases are served
                if self._tried.is_set():
                    self._note(str(error))
                else:
                    self._failed = error
            self._tried.set()
            if self.made is not None:
                if self._problem:
                    _log.info("The database %s is served now.", self._name)
                # The first reading of many queues compiles its statements; nobody should wait.
                self.made.state.snapshots.overview()
                return
            self._over.wait(_RETRY_SECONDS)

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.warning("The database %s is not served yet: %s", self._name, problem)


def connect_all(pending: Iterable[Pending]) -> None:
    """Connect to all databases at once, and wait a short time until they are served.

    Raises:
        Exception: an application cannot be made, though its database answers.
    """
    there = list(pending)
    for each in there:
        each.connect()
    ends = time.monotonic() + _FIRST_SECONDS
    for each in there:
        each.wait(max(0.0, ends - time.monotonic()))


def _without_database(settings: WebSettings) -> Starlette:
    loader = PackageLoader("queue_over_sql.web")
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(
        "unavailable.html"
    )
    why = f"The database {settings.database} does not answer. It is shown here as soon as it does."
    waits = {"retry-after": "10"}

    async def page(request: Request) -> Response:
        root = str(request.scope.get("root_path", ""))
        if request.path_params["path"].startswith("api/"):
            return Problem(503, "database-unavailable", why).response(waits)
        above = root.removesuffix(settings.database)
        databases = {name: f"{above}{name}/" for name in settings.databases}
        shown_page = template.render(
            title=settings.title,
            database=settings.database,
            databases=databases,
            root=root,
            static=static_path,
            why=why,
        )
        return HTMLResponse(shown_page, 503, waits)

    async def live(request: Request) -> Response:
        del request
        return Response("ok", media_type="text/plain")

    methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
    return Starlette(
        routes=[
            Mount("/static", KeptFiles()),
            Route("/livez", live, methods=["GET"]),
            Route("/{path:path}", page, methods=methods),
        ]
    )


def together(apps: Mapping[str, Starlette | Pending], max_body_bytes: int) -> Starlette:
    """Serve several applications of ``create_app``, each under ``/NAME``; the root is the first.

    Args:
        apps: the applications by the names of their databases, or those that are made later;
            ``WebSettings.databases`` of each has all names.
        max_body_bytes: the largest body of a request.

    Raises:
        ValueError: a name cannot be a path.
    """

    def to(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return RedirectResponse(f"{request.scope.get('root_path', '')}/{name}/", 307)

        return endpoint

    routes = [Route("/", to(next(iter(apps))), methods=["GET"])]
    names = map(check_database_name, apps)
    routes += [Route(f"/{name}", to(name), methods=["GET"]) for name in names]
    mounts = [Mount(f"/{name}", app) for name, app in apps.items()]
    made = Starlette(
        routes=[*routes, *mounts], middleware=[Middleware(Guard, max_body_bytes=max_body_bytes)]
    )
    made.router.redirect_slashes = False

    def end_waits() -> None:
        for app in apps.values():
            app.end_waits() if isinstance(app, Pending) else app.state.end_waits()

    made.state.end_waits = end_waits
    return made
