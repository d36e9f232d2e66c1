"""The command `demo`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from queue_over_sql.cli.options import RUNNING_PANEL
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.signals import ExitCode, stop_on_signals
from queue_over_sql.cli.values import counted, parse_duration
from queue_over_sql.dialects.engines import hide_passwords
from queue_over_sql_demo.account import Account
from queue_over_sql_demo.course import DemoError, Progress
from queue_over_sql_demo.databases import PRIVATE, is_private
from queue_over_sql_demo.files import NOT_STANDARD, Scan, scan, standard_library
from queue_over_sql_demo.plan import Plan
from queue_over_sql_demo.stage import perform, work_folder
from queue_over_sql_demo.view import View, account_table, rates


def register(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    command(app, "demo", panel=RUNNING_PANEL)(demo)


def demo(
    session: Session,
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            show_default="the standard library of this Python",
            help="Every file below this folder becomes a message.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Only the first N files.")
    ] = None,
    servers: Annotated[
        int, typer.Option("--servers", metavar="N", min=1, help="Server processes.")
    ] = 3,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=1, help="Worker threads per server.")
    ] = 2,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, help="Messages a thread claims at once.")
    ] = 8,
    kill: Annotated[
        bool, typer.Option("--kill/--no-kill", help="Kill one server while it holds messages.")
    ] = True,
    sample: Annotated[
        int, typer.Option("--sample", metavar="N", min=0, help="Checksums computed again.")
    ] = 200,
    consumer_timeout: Annotated[
        float,
        typer.Option(
            "--consumer-timeout",
            metavar="DURATION",
            parser=parse_duration,
            show_default="3s",
            help="Without a heartbeat for this long a server counts as dead.",
        ),
    ] = 3.0,
    deadline: Annotated[
        float,
        typer.Option(
            "--deadline",
            metavar="DURATION",
            parser=parse_duration,
            show_default="5m",
            help="Give up and settle the account after this long.",
        ),
    ] = 300.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the queue, the results table and the logs.")
    ] = False,
) -> None:
    """Compute the checksum of every file below a folder, and survive the death of a server.

    Every file is a message. Server processes compute SHA-256 and size, and write them in the same
    transaction as the acknowledgement. One server is killed with kill -9 while it holds messages,
    which come back through the reaper. At the end an account proves that each file was done
    exactly once; exit code 5 when it does not balance.

    Without a --url the database is an embedded SQLite file in a temporary folder, whatever
    QUEUE_OVER_SQL_URL says. On a database given by --url the demo uses a queue and a table of its
    own, and drops both at the end.
    """
    if kill and servers == 1:
        raise typer.BadParameter("one server has nobody to take over: use --servers 2 or --no-kill")
    # A schema and a prefix of the environment belong to the database of the environment.
    connection = session.connection if session.given.url else session.given
    if connection.url is not None and is_private(connection.url):
        problem = PRIVATE.format(url=hide_passwords(connection.url))
        raise typer.BadParameter(problem, param_hint="--url")
    with work_folder(keep=keep) as place:
        plan = Plan(
            url=connection.url or f"sqlite:///{place / 'demo.db'}",
            folder=(folder or standard_library()).resolve(),
            without=NOT_STANDARD if folder is None else frozenset(),
            limit=limit,
            servers=servers,
            threads=threads,
            batch=batch,
            kill=kill,
            sample=sample,
            consumer_timeout=consumer_timeout,
            deadline=deadline,
            schema=connection.schema,
            table_prefix=connection.table_prefix,
            keep=keep,
        )
        account, progress = _perform(session.output, plan, place)
        _report(session.output, plan, account, progress)
        if keep:
            _say_what_is_kept(session.output, plan, place)
    if not account.balanced:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _perform(output: Output, plan: Plan, place: Path) -> tuple[Account, Progress]:
    found = scan(plan.folder, plan.limit, plan.without)
    _insist_on_files(output, found, plan.folder)
    title = f"{counted(len(found.files), 'file')} below {plan.folder}"
    view = View(output, f"{title}, {counted(plan.servers, 'server')}\n{hide_passwords(plan.url)}")
    try:
        with stop_on_signals() as stop, view.open():
            if found.skipped:
                view.tell(f"left out, as they cannot be read: {counted(found.skipped, 'file')}")
            return perform(plan, found, place, stop=stop, show=view.show, tell=view.tell)
    except DemoError as error:
        output.error(str(error))
        raise typer.Exit(ExitCode.FAILED) from error


def _insist_on_files(output: Output, found: Scan, folder: Path) -> None:
    if not found.files:
        unreadable = f" ({found.skipped:,} cannot be read)" if found.skipped else ""
        output.error(f"no files below {folder}{unreadable}")
        raise typer.Exit(ExitCode.NOTHING)


def _report(output: Output, plan: Plan, account: Account, progress: Progress) -> None:
    if output.machine:
        output.record(_as_record(plan, account, progress))
    else:
        output.out.print()
        output.out.print(account_table(account, progress))
    for problem in account.problems():
        output.error(problem)
    if account.balanced and not output.machine:
        output.out.print(
            f"\nBalanced: {account.files:,} files, each done exactly once, "
            f"{account.redelivered:,} redelivered, 0 lost.",
            style="bold green",
            highlight=False,
        )


def _as_record(plan: Plan, account: Account, progress: Progress) -> dict[str, Any]:
    facts = dataclasses.asdict(account)
    measured = {name: round(value, 3) for name, value in rates(account, progress).items()}
    return {
        "balanced": account.balanced,
        "problems": account.problems(),
        "url": hide_passwords(plan.url),
        "folder": str(plan.folder),
        "servers": plan.servers,
        "killed": progress.rescue.server if progress.rescue else None,
        **facts,
        **measured,
    }


def _say_what_is_kept(output: Output, plan: Plan, place: Path) -> None:
    output.note(f"Kept: queue {plan.name}, table {plan.results}, and the servers' logs in {place}.")
