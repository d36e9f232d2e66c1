"""`spark load`: publish the rows of files, or of a table of another database."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from queue_over_sql.cli.options import QueueName, argument
from queue_over_sql.cli.session import Commands, Session
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.cli.spark import PANEL, ConfOption, MasterOption, spark_session
from queue_over_sql.cli.values import parse_texts
from queue_over_sql.plots.words import counted

if TYPE_CHECKING:
    from queue_over_sql.spark.pipelines.load import LoadReport

FromOption = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="FIELD=EXPRESSION",
        help="A field of the message, and the input column or Spark SQL expression that it comes "
        "from. Fields: payload, key, kind, headers, priority, delay, at, and the queue's own "
        "columns. Repeatable. Without a payload, all input columns become one JSON object.",
    ),
]


commands = Commands(PANEL)


@commands.add("load")
def load(
    session: Session,
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
        typer.Option("--on-conflict", help="What to do if a live message has the key."),
    ] = "skip",
    rejected: Annotated[
        str | None,
        typer.Option(
            "--rejected",
            metavar="FOLDER",
            help="Where to write rows that cannot become messages, with the reason. Without it, "
            "one such row ends the load before anything is published.",
        ),
    ] = None,
    rejected_format: Annotated[
        Literal["parquet", "json"], typer.Option("--rejected-format", help="Format of --rejected.")
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
        from queue_over_sql.spark.pipelines.load import load as run

        with session.output.progress(total_known=False) as bar:
            task = bar.add_task("Reading", total=None)
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
    _tell(session, report, rejected)
    if report.rejected:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _tell(session: Session, report: LoadReport, rejected: str | None) -> None:
    where = f" to {rejected}" if rejected and report.rejected else ""
    session.output.record(
        dataclasses.asdict(report),
        human=f"{counted(report.read, 'row')} read: {report.published:,} published, "
        f"{report.skipped:,} skipped, {report.rejected:,} rejected{where}.",
    )
