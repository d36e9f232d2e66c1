"""Several databases in one dashboard: an application for each, under its name.

They share nothing: each has its own tokens, sessions and audit, so that a token of one database is
none of another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from queue_over_sql.errors import shown
from queue_over_sql.web.security_headers import Guard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

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


def together(apps: Mapping[str, Starlette], max_body_bytes: int) -> Starlette:
    """Serve several applications of ``create_app``, each under ``/NAME``; the root is the first.

    Args:
        apps: the applications by the names of their databases; ``WebSettings.databases`` of each
            has all names.
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
            app.state.end_waits()

    made.state.end_waits = end_waits
    return made
