"""`spark load`, `spark export-history` and `spark report`: from files and into files."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from queue_over_sql.cli.options import QueueName, argument, duration
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.cli.spark import (
    PANEL,
    ConfOption,
    MasterOption,
    QueuesOption,
    spark_session,
    steps_shown,
)
from queue_over_sql.cli.values import parse_texts
from queue_over_sql.values.humanize import counted

if TYPE_CHECKING:
    from queue_over_sql.spark import LoadReport

FromOption = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="FIELD=EXPRESSION",
        help="A field of the message, and the input column or Spark SQL expression that gives its "
        "value. Fields: payload, key, kind, headers, priority, delay, at, and the queue's own "
        "columns. Repeatable. Without a payload, all input columns become one JSON object.",
    ),
]


commands = Commands(PANEL)
history_commands = Commands(PANEL)


@commands.add("load")
def load(
    session: CommandSession,
    *,
    source: Annotated[
        str,
        argument(
            "SOURCE", "A file, a folder or a pattern; with --format jdbc the name of a table."
        ),
    ],
    queue: QueueName,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            show_default="from the file extension",
            help="parquet, csv, json, jdbc, or another format that Spark reads.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="An option of Spark's reader, such as header=true or url=jdbc:…. Repeatable.",
        ),
    ] = None,
    fields: FromOption = None,
    on_conflict: Annotated[
        Literal["skip", "replace", "raise"],
        typer.Option(
            "--on-conflict",
            metavar="skip|replace|raise",
            help="If a live message has the key: keep that message, replace its content, or fail.",
        ),
    ] = "skip",
    rejected: Annotated[
        str | None,
        typer.Option(
            "--rejected",
            metavar="FOLDER",
            help="Where to write rows that cannot become messages, with the reason. Without this, "
            "one such row ends the load before anything is published.",
        ),
    ] = None,
    rejected_format: Annotated[
        Literal["parquet", "json"],
        typer.Option("--rejected-format", metavar="parquet|json", help="Format of --rejected."),
    ] = "parquet",
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also",
            metavar="URL",
            help="Another database that has this queue. Messages are distributed over all "
            "databases by key. Repeatable.",
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Publish the rows of files, or of a table of any database, as messages.

    Rows that cannot become messages go to --rejected. Give messages keys, so that a second run
    publishes nothing twice. Exit code 5: rows were rejected.
    """
    columns = parse_texts(fields or (), "--from")
    options = parse_texts(option or (), "--option")
    urls = [session.url, *(also or ())]
    with spark_session(session, master, conf) as spark:
        from queue_over_sql.spark import load as run

        with session.output.progress(total_known=False) as bar:
            task = bar.add_task("Reading", total=None)
            try:
                report = run(
                    spark,
                    source,
                    queue,
                    urls=urls,
                    **session.tables,
                    format=file_format,
                    options=options,
                    columns=columns,
                    on_conflict=on_conflict,
                    rejected=rejected,
                    rejected_format=rejected_format,
                    progress=lambda state: bar.update(
                        task, description=state.doing, completed=state.messages
                    ),
                )
            except TypeError as error:
                # A column of the input has a type that its field cannot have.
                raise ValueError(str(error)) from error
    _report(session, report, rejected)
    if report.rejected:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _report(session: CommandSession, report: LoadReport, rejected: str | None) -> None:
    where = f" to {rejected}" if rejected and report.rejected else ""
    session.output.record(
        dataclasses.asdict(report),
        human=f"{counted(report.read, 'row')} read: {report.published:,} published, "
        f"{report.skipped:,} skipped, {report.rejected:,} rejected{where}.",
    )


@history_commands.add("export-history")
def export_history(
    session: CommandSession,
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
            "The export also looks again at this period before the last export, to find messages "
            "that were committed late.",
            show_default="all earlier messages",
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
    """Write the messages that finished since the last export to Parquet files.

    The history has a folder for each queue and day. It contains each finished message exactly once,
    even if an export is killed. Export as often as you like, but run only one export at a time.

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


@history_commands.add("report")
def report(
    session: CommandSession,
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

    Spark computes it from a history and the live messages. Without --history it reads the archives
    instead. The page needs no network.

    Example: queue-over-sql spark report report --history /data/history --since 7d
    """
    if history is None and not live:
        raise typer.BadParameter(
            "with --no-live the report reads no database, so it requires --history"
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
