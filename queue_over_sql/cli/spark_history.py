"""`spark export-history` and `spark report`: archives as Parquet files, and reports on them."""

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
        argument("FOLDER", "The history's folder, or a URI such as hdfs://… or s3a://…."),
    ],
    queue: QueuesOption = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Afterwards remove the exported messages from the archives."),
    ] = False,
    overlap: Annotated[
        float | None,
        duration(
            "Look back only this far before the last export for messages that were committed late.",
            show_default="all",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="NAME",
            show_default="host and database name",
            help="Name of the database in the history. A history holds one database.",
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Export messages that finished since the last export to Parquet files.

    The history has a folder for each queue and day. It contains each finished message exactly once,
    even if an export is killed. Run it as often as you like, but only one export at a time.

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
        argument("FOLDER", "Output folder; report.html, parquet/ and csv/ in it are replaced."),
    ],
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            metavar="FOLDER",
            show_default="the archives",
            help="Read finished messages from this history (see export-history).",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live/--no-live", help="Include the live messages of the database."),
    ] = True,
    queue: QueuesOption = None,
    since: Annotated[
        float | None,
        duration(
            "Only messages that finished in this last period, such as 7d or 12h.",
            show_default="all",
        ),
    ] = None,
    title: Annotated[
        str, typer.Option("--title", metavar="TEXT", help="Title of the page.")
    ] = "Queue report",
    top: Annotated[
        int,
        typer.Option(
            "--top",
            metavar="N",
            min=1,
            help="Number of failure reasons and dead letters to list per queue.",
        ),
    ] = 20,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Write an HTML report: throughput, waiting times, run times, retries, failures, consumers.

    Spark computes it from a history and the live messages. Without --history it reads the archives.
    The page needs no network.

    Example: queue-over-sql spark report report --history /data/history --since 7d
    """
    if history is None and not live:
        raise typer.BadParameter(
            "--no-live needs a --history: without it there is nothing to report on"
        )
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
