"""What a database administrator does: `migrate`, the roles of the database, and its SQL API."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Final

import typer

from queue_over_sql import SchemaChange
from queue_over_sql.cli.options import QUEUES_PANEL, YesOption, confirm
from queue_over_sql.cli.session import Commands, Session
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.dialects.engines import routines_of
from queue_over_sql.roles.grants import DEFAULT_PREFIX
from queue_over_sql.roles.roles import rights_for

UP_TO_DATE = "The tables are up to date."

commands = Commands(QUEUES_PANEL)


@commands.add("migrate")
def migrate(
    session: Session,
    *,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what would be done.", show_default=False)
    ] = False,
    sql: Annotated[
        bool,
        typer.Option(
            "--sql",
            help="Only write the SQL that does it, for somebody else to run.",
            show_default=False,
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only say what would be done, with exit code 1 where there is something.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Bring tables that an earlier release made up to date; workers of that release go on.

    Safe to run again, from several places at once, and after it was killed. Services do it by
    themselves when they start, except those with auto_migrate=False.
    """
    if plan + sql + check > 1:
        raise typer.BadParameter("--plan, --sql and --check exclude one another")
    only_look = plan or sql or check
    with session.connect(auto_migrate=False) as service:
        changes = service.migrations.pending() if only_look else service.migrations.apply()
    for change in changes:
        session.output.record(
            _record(change, done=not only_look), human=None if sql else _sentence(change, only_look)
        )
        if sql and not session.output.machine:
            session.output.line("\n".join(f"{statement};" for statement in change.statements))
    if not changes:
        session.output.note(UP_TO_DATE)
    elif check:
        raise typer.Exit(ExitCode.FAILED)


def _record(change: SchemaChange, *, done: bool) -> dict[str, Any]:
    return {**dataclasses.asdict(change), "done": done}


def _sentence(change: SchemaChange, only_look: bool) -> str:
    return f"{'To be done' if only_look else 'Done'}: {change.summary}"


ROLES_PANEL: Final = "Roles"
TABLE_PREFIX: Final = "queue_"

QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="NAME",
        show_default="all queues",
        help="A queue that the roles are for; may be repeated.",
    ),
]
ReplyQueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reply-queue",
        metavar="NAME",
        show_default=False,
        help="A queue of replies: publishers take from it, consumers put in; may be repeated.",
    ),
]
RolePrefixOption = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="What the names of the roles begin with.")
]


role_commands = Commands(
    ROLES_PANEL,
    "roles",
    group_panel=QUEUES_PANEL,
    help="Roles of the database for publishers, consumers, operators and viewers.",
)


@role_commands.add("print")
def print_roles(
    session: Session,
    *,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="the database's",
            help="postgresql, mysql or mariadb: print for it without a database. Name each --queue "
            "then; tables of a dedup_window are left out.",
        ),
    ] = None,
    queue: QueueOption = None,
    reply_queue: ReplyQueueOption = None,
    prefix: RolePrefixOption = DEFAULT_PREFIX,
) -> None:
    """Write the statements that `install` would run, to read them or to run them as somebody else.

    PostgreSQL, MySQL and MariaDB.
    """
    replies = reply_queue or []
    if engine is not None and not (queue or replies):
        raise typer.BadParameter("name each --queue, which no database tells here")
    if engine is None:
        with session.connect() as service:
            statements = service.roles.statements(queue, reply_queues=replies, prefix=prefix)
    else:
        statements = rights_for(
            routines_of(engine),
            schema=session.connection.schema,
            table_prefix=session.connection.table_prefix or TABLE_PREFIX,
            queues=queue or [],
            reply_queues=replies,
            prefix=prefix,
        )
    if session.output.machine:
        session.output.record({"statements": statements})
    else:
        for statement in statements:
            session.output.line(f"{statement};")


@role_commands.add("install")
def install_roles(
    session: Session,
    *,
    queue: QueueOption = None,
    reply_queue: ReplyQueueOption = None,
    prefix: RolePrefixOption = DEFAULT_PREFIX,
) -> None:
    """Make the roles and give them their rights on the queues; safe to run again.

    PostgreSQL, MySQL and MariaDB. Run it again after a queue was created or got a dedup_window. The
    roles cannot log in: give them to the logins of your services.
    """
    with session.connect() as service:
        done = service.roles.install(queue, reply_queues=reply_queue or [], prefix=prefix)
    given = f"Gave {done.changes} roles and rights" if done.changes else "Nothing was missing"
    session.output.record(
        {"roles": list(done.roles), "changes": done.changes},
        human=f"{given}: {', '.join(done.roles)}.",
    )


SQL_API_PANEL: Final = "SQL API"
ROLE_HELP = (
    "Let this role execute it, and nothing else; may be repeated. On MySQL and MariaDB a user is "
    "named with the host, as in app@%."
)


sql_api_commands = Commands(
    SQL_API_PANEL,
    "sql-api",
    group_panel=QUEUES_PANEL,
    help="Functions and procedures in the database, so that any SQL client can use the queues.",
)


@sql_api_commands.add("install")
def install_sql_api(
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


@sql_api_commands.add("uninstall")
def uninstall_sql_api(session: Session, *, yes: YesOption = False) -> None:
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


@sql_api_commands.add("print")
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
