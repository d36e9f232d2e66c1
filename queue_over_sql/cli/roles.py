"""The commands of `roles`: print and install roles of the database for least privilege."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from queue_over_sql.cli.options import QUEUES_PANEL
from queue_over_sql.cli.session import Commands, Session
from queue_over_sql.dialects.engines import routines_of
from queue_over_sql.roles.grants import DEFAULT_PREFIX
from queue_over_sql.roles.roles import rights_for

PANEL: Final = "Roles"
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


commands = Commands(
    PANEL,
    "roles",
    group_panel=QUEUES_PANEL,
    help="Roles of the database for publishers, consumers, operators and viewers.",
)


@commands.add("print")
def print_statements(
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


@commands.add("install")
def install(
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
