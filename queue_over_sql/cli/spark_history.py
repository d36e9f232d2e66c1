"""`spark export-history` and `spark report`: archives as Parquet, and what happened in them."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from queue_over_sql.cli.options import argument, duration
from queue_over_sql.cli.session import Commands, Session
from queue_over_sql.cli.spark import (
    PANEL,
    ConfOption,
    MasterOption,
    QueuesOption,
    spark_session,
    steps_shown,
)
from queue_over_sql.plots.words import counted

commands = Commands(PANEL)


@commands.add("export-history")
def export_history(
    session: Session,
    *,
    folder: Annotated[
        str,
        argument("FOLDER", "Where the history is: a folder, or a URI such as hdfs://… or s3a://…."),
    ],
    queue: QueuesOption = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Then remove from the archives what is in the history."),
    ] = False,
    overlap: Annotated[
        float | None,
        duration(
            "Look for what was committed late only so far before the last export.",
            show_default="all",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="NAME",
            show_default="its host and name",
            help="What the database is called in the history, which takes one only.",
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Add what has finished since the last export to a history of Parquet files.

    One folder for each queue and day. Each finished message is there once, whatever is killed
    when; run it as often as you like, by one at a time.

    Example: queue-over-sql spark export-history /data/history --prune
    """
    url = session.url
    with (
        spark_session(session, master, conf) as spark,
        steps_shown(session, "Exporting") as progress,
    ):
        from queue_over_sql.spark import export_history as run

        report = run(
            spark,
            folder,
            url=url,
            **session.tables,
            queues=queue,
            prune=prune,
            overlap=overlap,
            source=source,
            progress=progress,
        )
    pruned = sum(report.pruned.values())
    words = f"Exported {counted(report.messages, 'message')} in {counted(report.files, 'file')}"
    late = sum(report.late.values())
    words += f", {late:,} of them committed late" if late else ""
    words += f", pruned {counted(pruned, 'message')}" if prune else ""
    fields = {**dataclasses.asdict(report), "messages": report.messages}
    session.output.record(fields, human=f"{words}, to {report.path}.")


@commands.add("report")
def report(
    session: Session,
    *,
    folder: Annotated[
        str,
        argument("FOLDER", "Where to: report.html, parquet/ and csv/ in it are replaced."),
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
        duration("Only what finished in the last 7d, 12h, ….", show_default="all"),
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
