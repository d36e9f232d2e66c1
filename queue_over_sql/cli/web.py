"""The command `serve`, and the commands of `token` for the HTTP users."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queue_over_sql import DatabaseUnavailable, QueueError
from queue_over_sql.cli.options import RUNNING_PANEL, YesOption, confirm, duration
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import stop_on_signals
from queue_over_sql.cli.values import format_instant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql import QueueService
    from queue_over_sql.web.settings import WebSettings
    from queue_over_sql.web.tables import StoredToken, WebStore

_log = logging.getLogger(__name__)

COLUMNS: Final = ("name", "role", "queues", "created (UTC)", "expires (UTC)")
NONE_YET: Final = (
    "There is no token yet. Create one with: queue-over-sql token add NAME --role operator"
)

TokenName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        show_default=False,
        help="Name of the person or program that uses the token.",
    ),
]

token_commands = Commands(
    RUNNING_PANEL,
    "token",
    help="Tokens of the HTTP API and the dashboard.",
)


@token_commands.add("add")
def add(
    session: CommandSession,
    *,
    name: TokenName,
    role: Annotated[
        str,
        typer.Option(
            "--role",
            metavar="publisher|viewer|operator|admin",
            show_default=False,
            help="publisher: publish only. viewer: read only. operator: both, and claim, edit and "
            "pause. admin: also create, drop and purge queues, and manage tokens.",
        ),
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="PATTERN",
            show_default=False,
            help="Only for queues with this name or pattern, such as 'orders*', and only over the "
            "HTTP API. Repeatable.",
        ),
    ] = None,
    expires: Annotated[
        float | None,
        duration("The token expires after this time.", "--expires", show_default="never"),
    ] = None,
) -> None:
    """Create a token and print it. Keep it: it is printed only once and not stored.

    Example: queue-over-sql token add ada --role operator --expires 90d
    """
    wanted = _role(role)
    lasts = None if expires is None else timedelta(seconds=expires)
    with session.connect() as service:
        secret, token = _store(service).add_token(name, wanted, lasts, queue or ())
    session.output.record({**fields(token), "token": secret}, human=secret)
    until = "" if token.expires_at is None else f" until {format_instant(token.expires_at)} UTC"
    session.output.note(f"{name} is {wanted}{until}. The token is shown only this once.")


@token_commands.add("list")
def list_tokens(session: CommandSession) -> None:
    """List the names and roles of the tokens. Exit code 3: there is none."""
    with session.connect() as service:
        found = _store(service).tokens()
    session.output.listing(found, fields, COLUMNS, _listed, nothing=NONE_YET)


@token_commands.add("remove")
def remove(
    session: CommandSession,
    *,
    name: TokenName,
    last_admin: Annotated[
        bool,
        typer.Option("--last-admin", help="Remove it even if it is the last one of an admin."),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Remove a token. The token and its browser sessions become invalid within a second.

    Exit code 3: there is no token with this name.
    """
    confirm(f"Remove the token of {name}?", yes=yes)
    from queue_over_sql.web.tables import LastAdminToken

    with session.connect() as service:
        try:
            removed = _store(service).remove_token(name, last_admin=last_admin)
        except LastAdminToken as error:
            problem = f"{error} To remove it all the same, add --last-admin."
            raise typer.BadParameter(problem, param_hint="NAME") from error
    session.output.record(
        {"name": name, "removed": removed},
        human=f"The token of {name} is removed." if removed else None,
    )
    if not removed:
        session.output.nothing(f"There is no token named {name!r}.")


serve_commands = Commands(RUNNING_PANEL)


@serve_commands.add("serve")
def serve(
    session: CommandSession,
    *,
    http: Annotated[
        str,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Address to listen on. A port without a host listens on this machine only; port "
            "0 picks a free port.",
        ),
    ] = "127.0.0.1:8080",
    database: Annotated[
        list[str] | None,
        typer.Option(
            "--database",
            metavar="NAME=URL",
            show_default=False,
            help="Serve several databases, each under /NAME with its own tokens. Repeatable; "
            "replaces --url. NAME=env:VARIABLE reads the URL from an environment variable, because "
            "other users of the machine can see options. The others are served while one does not "
            "answer.",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all changes.")] = False,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="Require a token from users on this machine, even before you add the first token. "
            "Without this option, --proxy-header and --cors-origins, everybody on this machine is "
            "an admin until you add the first token.",
        ),
    ] = False,
    title: Annotated[
        str,
        typer.Option(
            "--title", metavar="TEXT", help="Name of this deployment, shown on the pages."
        ),
    ] = "queue_over_sql",
    mask: Annotated[
        list[str] | None,
        typer.Option(
            "--mask",
            metavar="FIELD",
            show_default=False,
            help="Mask this field in payloads and headers: a name at any depth, or a path such as "
            "user.iban. Repeatable. Fingerprints of errors are then encrypted with --secret, so "
            "those of `dead` differ.",
        ),
    ] = None,
    proxy_header: Annotated[
        str | None,
        typer.Option(
            "--proxy-header",
            metavar="NAME",
            show_default=False,
            help="Read the user's name from this header, only in requests from --proxy-from.",
        ),
    ] = None,
    proxy_from: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy-from",
            metavar="NETWORK",
            show_default=False,
            help="Address or network of the reverse proxy. Repeatable.",
        ),
    ] = None,
    proxy_role: Annotated[
        str,
        typer.Option(
            "--proxy-role",
            metavar="viewer|operator|admin",
            help="Role of the users that the proxy names.",
        ),
    ] = "viewer",
    proxy_role_header: Annotated[
        str | None,
        typer.Option(
            "--proxy-role-header",
            metavar="NAME",
            show_default=False,
            help="Read the user's role from this header of the proxy, if it sends one.",
        ),
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option(
            "--origins",
            metavar="URL",
            show_default=False,
            help="Address of the pages in the browser, such as https://queues.example.org, if the "
            "proxy changes the Host header. Repeatable.",
        ),
    ] = None,
    cors_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origins",
            metavar="URL",
            show_default=False,
            help="Let scripts of this other site use the HTTP API, with a token; * means any site. "
            "Repeatable.",
        ),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            "--secret",
            metavar="TEXT",
            envvar="QUEUE_OVER_SQL_SECRET",
            show_envvar=False,
            show_default="a new one at each start",
            help="Key of the forms of the users that the proxy names. Give all servers behind one "
            "address the same. Set QUEUE_OVER_SQL_SECRET instead, because other users of the "
            "machine can see options.",
        ),
    ] = None,
) -> None:
    """Serve the dashboard, and the HTTP API at /api/v1, until SIGTERM or SIGINT.

    If other machines can reach the address, the command requires a token (see token add) or a
    reverse proxy that authenticates users. In that case also put a proxy with TLS in front of the
    command, even if you use tokens.
    """
    try:
        from queue_over_sql.web.server import serving
        from queue_over_sql.web.settings import WebSettings
        from queue_over_sql.web.several import Pending, connect_all, together
    except ImportError as error:
        problem = f"serve requires the extra web: pip install 'queue-over-sql[web]' ({error})"
        raise typer.BadParameter(problem, param_hint="serve") from error
    from queue_over_sql.cli.logs import start_logging
    from queue_over_sql.observability import read_address

    host, port = read_address(http)
    urls: dict[str, str | None] = {**_databases(database or ())} or {"": None}
    try:
        settings = WebSettings(
            title=title,
            read_only=read_only,
            masked=tuple(mask or ()),
            proxy_header=proxy_header,
            proxy_from=tuple(proxy_from or ()),
            proxy_role=_role(proxy_role),
            proxy_role_header=proxy_role_header,
            origins=tuple(origins or ()),
            cors_origins=tuple(cors_origins or ()),
            secret=secret,
            databases=tuple(urls) if database else (),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="serve") from error
    needs_token = bool(tokens or proxy_header or cors_origins)
    start_logging("info")
    with ExitStack() as stack:

        def make(name: str) -> Any:
            with ExitStack() as own:
                connecting = session.connect(consumer_name="serve", url=urls[name])
                service = own.enter_context(connecting)
                of_it = dataclasses.replace(settings, database=name)
                app = _application(service, of_it, host, needs_token=needs_token)
                stack.enter_context(own.pop_all())
            return app

        if database:
            pending = {
                name: Pending(
                    functools.partial(make, name), dataclasses.replace(settings, database=name)
                )
                for name in urls
            }
            connect_all(pending.values())
            app: Any = together(pending, settings.max_body_bytes)
        else:
            app = make("")
        try:
            with stop_on_signals() as stop, serving(app, host, port) as address:
                _log.info("The dashboard is at %s", address)
                if not database:
                    # The first reading of many queues compiles its statements: nobody should wait.
                    app.state.snapshots.overview()
                stop.requested.wait()
        except OSError as error:
            raise typer.BadParameter(f"{http}: {error.strerror}", param_hint="--http") from error


def _application(
    service: QueueService, settings: WebSettings, host: str, *, needs_token: bool
) -> Any:
    from queue_over_sql import inside
    from queue_over_sql.web.access import check_binding, is_loopback
    from queue_over_sql.web.app import create_app
    from queue_over_sql.web.settings import Role
    from queue_over_sql.web.tables import WebStore

    # A reaper must end the leases of API clients, and there may be no other one.
    refused = None
    try:
        inside.start_to_serve(service)
    except DatabaseUnavailable:
        raise
    except QueueError as error:
        # A read-only database can still be shown.
        refused = error
    store = WebStore(service, settings)
    has_tokens = store.prepare() and bool(store.tokens())
    is_open = not needs_token and not has_tokens and is_loopback(host)
    settings = dataclasses.replace(settings, open_role=Role.ADMIN if is_open else None)
    try:
        check_binding(host, settings, has_tokens=has_tokens)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--http") from error
    if refused is not None:
        _log.warning("This web server runs no reaper: %s", refused)
    return create_app(service, settings)


def _databases(given: Sequence[str]) -> dict[str, str]:
    from queue_over_sql.web.several import check_database_name

    found = {}
    for each in given:
        name, _, url = each.partition("=")
        if not url:
            msg = "write --database as NAME=URL, such as orders=postgresql://host/orders"
            raise typer.BadParameter(msg, param_hint="--database")
        variable = url.removeprefix("env:")
        if variable != url and not (url := os.environ.get(variable, "")):
            msg = f"the environment variable {variable} of database {name} is not set"
            raise typer.BadParameter(msg, param_hint="--database")
        try:
            found[check_database_name(name)] = url
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--database") from error
    if len(found) < len(given):
        msg = "two databases have the same name: each needs its own"
        raise typer.BadParameter(msg, param_hint="--database")
    return found


@serve_commands.add("openapi")
def openapi(session: CommandSession) -> None:
    """Print the OpenAPI 3.1 document of the HTTP API, for generators of clients.

    It needs no database. Example: queue-over-sql openapi > openapi.json
    """
    try:
        from queue_over_sql.web.api import openapi_document
    except ImportError as error:
        problem = f"openapi requires the extra web: pip install 'queue-over-sql[web]' ({error})"
        raise typer.BadParameter(problem, param_hint="openapi") from error
    described = openapi_document()
    if session.output.machine:
        session.output.record(described)
    else:
        session.output.line(json.dumps(described, indent=2, ensure_ascii=False))


def fields(token: StoredToken) -> dict[str, Any]:
    """A token as JSON-ready values, without its hash."""
    names = ("name", "role", "created_at", "expires_at")
    return {name: getattr(token, name) for name in names} | {"queues": list(token.queues)}


def _listed(token: StoredToken) -> tuple[object, ...]:
    until = format_instant(token.expires_at) or "never"
    queues = ", ".join(token.queues) or "all"
    return token.name, token.role.value, queues, format_instant(token.created_at), until


def _role(text: str) -> Any:
    from queue_over_sql.values.checks import check_choice
    from queue_over_sql.web.settings import Role

    check_choice("--role", text, [role.value for role in Role])
    return Role(text)


def _store(service: QueueService) -> WebStore:
    from queue_over_sql.errors import QueueError
    from queue_over_sql.web.settings import WebSettings
    from queue_over_sql.web.tables import WebStore

    store = WebStore(service, WebSettings())
    if not store.prepare():
        raise QueueError(store.problem)
    return store
