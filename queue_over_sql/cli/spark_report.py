"""`spark report`: what happened in the queues, as tables and as one page."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.spark_options import (
    PANEL,
    ConfOption,
    MasterOption,
    QueuesOption,
    spark_session,
    steps_shown,
)
from queue_over_sql.cli.values import counted, parse_duration


def register(group: typer.Typer) -> None:
    """Add this module's command to `group`."""
    command(group, "report", panel=PANEL)(report)


def report(
    session: Session,
    *,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            show_default=False,
            help="Where to: report.html, parquet/ and csv/ in it are replaced.",
        ),
    ],
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            metavar="FOLDER",
            show_default="the archives",
            help="A history of export-history, for what is finished.",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live/--no-live", help="Whether to look at the database's live messages."),
    ] = True,
    queue: QueuesOption = None,
    since: Annotated[
        float | None,
        typer.Option(
            "--since",
            metavar="DURATION",
            parser=parse_duration,
            show_default="all",
            help="Only what finished in the last 7d, 12h, ….",
        ),
    ] = None,
    title: Annotated[
        str, typer.Option("--title", metavar="TEXT", help="Title of the page.")
    ] = "Queue report",
    top: Annotated[
        int,
        typer.Option("--top", metavar="N", min=1, help="Reasons and dead letters of each queue."),
    ] = 20,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Say what happened: throughput, waiting, run times, retries, failures, who did the work.

    Computed by Spark over a history and the live messages, or without a history over the archives.
    The page needs no network.

    Example: queue-over-sql spark report report --history /data/history --since 7d
    """
    if history is None and not live:
        raise typer.BadParameter("--no-live leaves nothing to look at: name a --history as well")
    url = session.url if live else None
    with (
        spark_session(session, master, conf) as spark,
        steps_shown(session, "Reporting") as progress,
    ):
        from queue_over_sql.spark import report as run

        made = run(
            spark,
            folder,
            history=history,
            url=url,
            **session.tables,
            queues=queue,
            since=since,
            title=title,
            top=top,
            progress=progress,
        )
    session.output.record(
        dataclasses.asdict(made),
        human=f"{counted(made.finished, 'finished message')} and {made.live:,} live ones of "
        f"{counted(made.queues, 'queue')}: {made.page}",
    )
