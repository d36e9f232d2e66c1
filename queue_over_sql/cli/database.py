"""Commands for database administrators: `migrate`, `roles` and `sql-api`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queue_over_sql.cli.options import QUEUES_PANEL, YesOption, confirm
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.values.options import DEFAULT_PREFIX

if TYPE_CHECKING:
    from queue_over_sql import SchemaChange

UP_TO_DATE = "The tables are up to date."

commands = Commands(QUEUES_PANEL)


@commands.add("migrate")
def migrate(
    session: CommandSession,
    *,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only show the pending changes.", show_default=False)
    ] = False,
    sql: Annotated[
        bool,
        typer.Option(
            "--sql",
            help="Only print the SQL statements, for example for your database administrator.",
            show_default=False,
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only show the pending changes; exit code 1 if there are any.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Upgrade tables that an earlier release created.

    Workers of that release can keep running, except on H2. On H2 stop all other processes first:
    the command waits a minute for them, and then fails. It is safe to run this command repeatedly,
    concurrently, and after it was killed. Services upgrade the tables when they start, unless they
    have auto_migrate=False.
    """
    if plan + sql + check > 1:
        raise typer.BadParameter("use only one of --plan, --sql and --check")
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
    return f"{'Pending' if only_look else 'Done'}: {change.summary}"


ROLES_PANEL: Final = "Roles"
TABLE_PREFIX: Final = "queue_"

QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        metavar="NAME",
        show_default="all queues",
        help="A queue that the roles may use. Repeatable.",
    ),
]
ReplyQueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reply-queue",
        metavar="NAME",
        show_default=False,
        help="A reply queue: publishers may also consume from it, and consumers may also publish "
        "to it. Repeatable.",
    ),
]
RolePrefixOption = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="Prefix of the role names.")
]


role_commands = Commands(
    ROLES_PANEL,
    "roles",
    group_panel=QUEUES_PANEL,
    help="Database roles for publishers, consumers, operators and viewers.",
)


@role_commands.add("print")
def print_roles(
    session: CommandSession,
    *,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="the engine of the database",
            help="Print the statements for this engine, without a database: postgresql, mysql or "
            "mariadb. Name each queue with --queue. A queue with a dedup_window or a group_limit "
            "has an extra table. Statements that are printed with --engine grant no rights on that "
            "table.",
        ),
    ] = None,
    queue: QueueOption = None,
    reply_queue: ReplyQueueOption = None,
    prefix: RolePrefixOption = DEFAULT_PREFIX,
) -> None:
    """Print the SQL statements that `install` would run.

    PostgreSQL, MySQL and MariaDB.
    """
    replies = reply_queue or []
    if engine is not None and not (queue or replies):
        raise typer.BadParameter(
            "without a database the queues are not known: name each of them with --queue"
        )
    if engine is None:
        with session.connect() as service:
            statements = service.roles.statements(queue, reply_queues=replies, prefix=prefix)
    else:
        from queue_over_sql.inside.databases import rights_for, routines_of

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
    session: CommandSession,
    *,
    queue: QueueOption = None,
    reply_queue: ReplyQueueOption = None,
    prefix: RolePrefixOption = DEFAULT_PREFIX,
) -> None:
    """Create the database roles publisher, consumer, operator and viewer, with their rights.

    PostgreSQL, MySQL and MariaDB. It is safe to repeat. Run it again after you create a queue or
    give one a dedup_window or a group_limit. The roles cannot log in: grant them to the logins of
    your services.
    """
    with session.connect() as service:
        done = service.roles.install(queue, reply_queues=reply_queue or [], prefix=prefix)
    given = f"Granted {done.changes} roles and rights" if done.changes else "Nothing to grant"
    session.output.record(
        {"roles": list(done.roles), "changes": done.changes},
        human=f"{given}: {', '.join(done.roles)}.",
    )


SQL_API_PANEL: Final = "SQL API"
ROLE_HELP = (
    "Grant this role the right to execute the SQL API, and no other right. Repeatable. On MySQL "
    "and MariaDB name a user with its host, as in app@%."
)


sql_api_commands = Commands(
    SQL_API_PANEL,
    "sql-api",
    group_panel=QUEUES_PANEL,
    help="Database functions and procedures with which any SQL client can use the queues.",
)


@sql_api_commands.add("install")
def install_sql_api(
    session: CommandSession,
    *,
    role: Annotated[
        list[str] | None, typer.Option(metavar="NAME", show_default=False, help=ROLE_HELP)
    ] = None,
) -> None:
    """Install the SQL API in the schema of the tables, or upgrade it.

    PostgreSQL, MySQL and MariaDB. It is safe to run this repeatedly and concurrently. On MySQL and
    MariaDB run it again after you create or drop a queue.
    """
    roles = role or []
    with session.connect() as service:
        service.sql_api.install(roles)
    allowed = f" {', '.join(roles)} may execute it." if roles else ""
    session.output.record(
        {"installed": True, "roles": roles}, human=f"The SQL API is installed.{allowed}"
    )


@sql_api_commands.add("uninstall")
def uninstall_sql_api(session: CommandSession, *, yes: YesOption = False) -> None:
    """Remove the SQL API, and release the messages that SQL clients still hold.

    Exit code 3: it was not installed.
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
def print_script(session: CommandSession) -> None:
    """Print the SQL script that `install` would run, for psql or mysql.

    It does not include the grants of --role.
    """
    with session.connect() as service:
        script = service.sql_api.script()
    if session.output.machine:
        session.output.record({"script": script})
    else:
        session.output.line(script.rstrip("\n"))
