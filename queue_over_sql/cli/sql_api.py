"""The commands of `sql-api`: install, uninstall and print functions for other SQL clients."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from queue_over_sql.cli.options import QUEUES_PANEL, YesOption, confirm
from queue_over_sql.cli.session import Commands, Session

PANEL: Final = "SQL API"
ROLE_HELP = (
    "Let this role execute it, and nothing else; may be repeated. On MySQL and MariaDB a user is "
    "named with the host, as in app@%."
)


commands = Commands(
    PANEL,
    "sql-api",
    group_panel=QUEUES_PANEL,
    help="Functions and procedures in the database, so that any SQL client can use the queues.",
)


@commands.add("install")
def install(
    session: Session,
    *,
    role: Annotated[
        list[str] | None, typer.Option(metavar="NAME", show_default=False, help=ROLE_HELP)
    ] = None,
) -> None:
    """Install the SQL API beside the tables, or bring it up to date.

    PostgreSQL, MySQL and MariaDB. Safe to run again, also from several servers at once. On MySQL
    and MariaDB run it again after a queue was created or dropped.
    """
    roles = role or []
    with session.connect() as service:
        service.sql_api.install(roles)
    allowed = f" {', '.join(roles)} may execute it." if roles else ""
    session.output.record(
        {"installed": True, "roles": roles}, human=f"The SQL API is installed.{allowed}"
    )


@commands.add("uninstall")
def uninstall(session: Session, *, yes: YesOption = False) -> None:
    """Remove the SQL API; what SQL clients still hold is given back.

    Exit code 3 when it was not there.
    """
    confirm("Remove the SQL API? Clients that use it will fail.", yes=yes)
    with session.connect() as service:
        removed = service.sql_api.uninstall()
    session.output.record(
        {"uninstalled": removed}, human="The SQL API is removed." if removed else None
    )
    if not removed:
        session.output.nothing("The SQL API was not installed.")


@commands.add("print")
def print_script(session: Session) -> None:
    """Write what `install` would run, for psql or mysql: to read it, or to run it as somebody else.

    Roles are not part of it.
    """
    with session.connect() as service:
        script = service.sql_api.script()
    if session.output.machine:
        session.output.record({"script": script})
    else:
        session.output.line(script.rstrip("\n"))
