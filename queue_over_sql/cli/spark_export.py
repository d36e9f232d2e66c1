"""`spark export-history`: the archives of all queues as files of Parquet."""

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
    command(group, "export-history", panel=PANEL)(export_history)


def export_history(
    session: Session,
    *,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            show_default=False,
            help="Where the history is: a folder, or a URI such as hdfs://… or s3a://….",
        ),
    ],
    queue: QueuesOption = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Then remove from the archives what is in the history."),
    ] = False,
    overlap: Annotated[
        float | None,
        typer.Option(
            "--overlap",
            metavar="DURATION",
            parser=parse_duration,
            show_default="all",
            help="Look for what was committed late only so far before the last export.",
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
