"""The command `migrate`: bring tables of an earlier release up to date, or say what they lack."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from queue_over_sql import SchemaChange
from queue_over_sql.cli.options import QUEUES_PANEL
from queue_over_sql.cli.session import Commands, Session
from queue_over_sql.cli.signals import ExitCode

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
    themselves when they start, but for those with auto_migrate=False.
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
