"""A run of the demo: its plan, its view, and the report at the end."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer

from queue_over_sql.cli.output import Output
from queue_over_sql.cli.session import DatabaseOptions
from queue_over_sql.cli.signals import ExitCode, stop_on_signals
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.texts import hide_passwords
from queue_over_sql_demo.account import Account
from queue_over_sql_demo.course import DemoError, Progress
from queue_over_sql_demo.files import NOT_STANDARD, Scan, scan, standard_library
from queue_over_sql_demo.plan import Plan
from queue_over_sql_demo.stage import clear_stage, dashboard, perform, work_folder
from queue_over_sql_demo.view import View, account_table, rates


def run(
    output: Output,
    connection: DatabaseOptions,
    *,
    folder: Path | None,
    serve: bool,
    keep: bool,
    **options: Any,
) -> bool:
    """Run the demo with these options; returns whether its account balances."""
    with work_folder(keep=keep) as place:
        plan = Plan(
            url=connection.url or f"sqlite:///{place / 'demo.db'}",
            folder=(folder or standard_library()).resolve(),
            without=NOT_STANDARD if folder is None else frozenset(),
            schema=connection.schema,
            table_prefix=connection.table_prefix,
            # Keep everything that the dashboard shows until the end.
            keep=keep or serve,
            history=serve,
            **options,
        )
        with dashboard(plan) if serve else nullcontext() as address:
            if address is not None:
                output.note(f"The dashboard is at {address}")
            account, progress = _perform(output, plan, place)
            _report(output, plan, account, progress)
            if address is not None:
                output.note(f"The dashboard stays at {address} until Ctrl-C.")
                with stop_on_signals() as stop:
                    stop.requested.wait()
        if serve and not keep:
            clear_stage(plan)
        if keep:
            _say_what_is_kept(output, plan, place)
    return account.balanced


def _perform(output: Output, plan: Plan, place: Path) -> tuple[Account, Progress]:
    found = scan(plan.folder, plan.limit, plan.without)
    _insist_on_files(output, found, plan.folder)
    title = f"{counted(len(found.files), 'file')} below {plan.folder}"
    view = View(
        output,
        f"{title}, {counted(plan.servers, 'process', 'processes')}\n{hide_passwords(plan.url)}",
    )
    try:
        with stop_on_signals() as stop, view.open():
            if found.skipped:
                view.tell(f"skipped, because they cannot be read: {counted(found.skipped, 'file')}")
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
        order = ""
        if account.customers:
            order = f" The files of each of {account.customers:,} customers were done in order."
        output.out.print(
            f"\nBalanced: {account.files:,} files, each done exactly once, "
            f"{account.redelivered:,} redelivered, 0 lost.{order}",
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
        "killed": ", ".join(each.server for each in progress.rescues) or None,
        **facts,
        **measured,
    }


def _say_what_is_kept(output: Output, plan: Plan, place: Path) -> None:
    output.note(
        f"Kept: queue {plan.name}, table {plan.results}, and the logs of the processes in {place}."
    )
