"""`spark workers`: Spark's executors run your handler for the messages of a queue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from queue_over_sql.cli.options import ConsumerTimeoutOption, QueueName, argument
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import ExitCode, Stop, stop_on_signals
from queue_over_sql.cli.spark import (
    PANEL,
    ConfOption,
    MasterOption,
    check_function,
    load_function,
    spark_session,
)
from queue_over_sql.cli.values import parse_duration
from queue_over_sql.values.humanize import counted, format_duration

if TYPE_CHECKING:
    from rich.progress import Progress

    from queue_over_sql.spark import FleetProgress, FleetReport

_FUNCTION = "handle"
FormOption = Annotated[
    Literal["message", "batch", "arrow"],
    typer.Option(
        "--form",
        metavar="message|batch|arrow",
        help="What the handler gets: one message, a list of messages, or an Arrow batch.",
    ),
]


commands = Commands(PANEL)


@commands.add("workers")
def workers(
    session: CommandSession,
    *,
    queue: QueueName,
    target: Annotated[
        str,
        argument(
            "MODULE:FUNCTION",
            "Import path of the handler. The current folder is importable. Without a colon the "
            "function is named handle.",
        ),
    ],
    number: Annotated[
        int,
        typer.Option(
            "--workers", metavar="N", min=1, help="Number of workers; each is a Spark task."
        ),
    ] = 2,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            metavar="N",
            min=1,
            show_default="100; 500 with --form arrow; 10,000 with --form arrow --transactional",
            help="Messages per claim.",
        ),
    ] = None,
    until: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="empty|forever|DURATION",
            help="When to end: when every due message is finished, never, or after a duration. "
            "Ctrl-C finishes the current messages first.",
        ),
    ] = "empty",
    form: FormOption = "message",
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional",
            help="Also pass a connection to the handler, and commit the handler's writes together "
            "with the ack.",
        ),
    ] = False,
    consumer_timeout: ConsumerTimeoutOption = 30.0,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Run your handler for the messages of a queue, on Spark's executors.

    Each worker is a normal consumer, with heartbeat, leases, retries and dead letters. The report
    at the end counts the handled and the failed messages. Exit code 5: there were dead letters.
    """
    # Report a wrong name before Spark is started.
    importable = check_function(target, _FUNCTION)
    url, ends = session.url, _until(until)
    with spark_session(session, master, conf) as spark, stop_on_signals() as stop:
        from queue_over_sql.spark import run_workers, send_by_value

        handler = load_function(target, _FUNCTION)
        if not importable:
            send_by_value(target.partition(":")[0])
        with session.output.progress() as bar:
            shown = _Shown(bar, queue, stop)
            report = run_workers(
                spark,
                queue,
                handler,
                url=url,
                **session.tables,
                workers=number,
                batch=batch,
                until=ends,
                form=form,
                transactional=transactional,
                consumer_timeout=consumer_timeout,
                progress=shown.show,
                stop=stop.requested,
            )
    _report(session, report)
    if report.dead:
        raise typer.Exit(ExitCode.INCOMPLETE)


class _Shown:
    """Shows the workers' progress; a second signal stops them without waiting for handlers."""

    def __init__(self, bar: Progress, queue: str, stop: Stop) -> None:
        self._bar = bar
        self._stop = stop
        self._task = bar.add_task(f"Working on {queue}", total=None)
        self._total = 0

    def show(self, state: FleetProgress) -> None:
        if self._stop.now.is_set():
            raise KeyboardInterrupt
        self._total = max(self._total, state.left)
        self._bar.update(self._task, completed=self._total - state.left, total=self._total)


def _until(text: str) -> Literal["empty"] | float | None:
    if text == "empty":
        return "empty"
    return None if text == "forever" else parse_duration(text)


def _report(session: CommandSession, report: FleetReport) -> None:
    workers = [dataclasses.asdict(worker) for worker in report.workers]
    fields = {**dataclasses.asdict(report), "workers": workers}
    session.output.record(
        fields,
        human=f"{counted(report.handled, 'message')} handled, {report.failed:,} failures, "
        f"{counted(report.dead, 'dead letter')}, in "
        f"{format_duration(report.seconds)} by {counted(len(report.workers), 'worker')}.",
    )
    if report.restarts:
        session.output.note(
            f"Spark's job was started again {counted(report.restarts, 'time')} after a worker was "
            "lost. This count does not include what the lost workers handled."
        )
