"""`spark process`: transform a queue's messages and write them to Parquet, a queue, or both."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_over_sql import QueueError
from queue_over_sql.cli.options import QueueName, argument, duration
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.signals import Stop, stop_on_signals
from queue_over_sql.cli.spark import (
    PANEL,
    ConfOption,
    MasterOption,
    check_function,
    ended_by,
    load_function,
    spark_session,
)
from queue_over_sql.cli.values import parse_texts
from queue_over_sql.values.humanize import counted

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Left:
    """The unfinished messages of a queue.

    ``waiting`` are ready, ``own`` are held or not yet acknowledged by this query, ``others`` are
    held by other consumers.
    """

    waiting: int
    own: int
    others: int


def left_in(session: CommandSession, queue: str, consumer: str) -> Left | None:
    """Count the unfinished messages of a queue, as a query's durable consumer sees them.

    None if the database does not answer.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from queue_over_sql.inside.streams import DurableConsumer

    try:
        with session.queue(queue) as found:
            own = DurableConsumer(found, consumer, owner="").outstanding()
            stats = found.stats()
    except (QueueError, SQLAlchemyError):
        return None
    return Left(stats.ready, own, max(0, stats.claimed - own))


@contextlib.contextmanager
def reporting_what_is_held(session: CommandSession, queue: str, consumer: str) -> Iterator[None]:
    """If the query fails, say which messages it still holds."""
    try:
        yield
    except typer.Exit as ended:
        left = left_in(session, queue, consumer) if ended.exit_code else None
        if left is not None and left.own:
            session.output.note(
                f"{consumer} holds {counted(left.own, 'message')} until it is started again with "
                "the same checkpoint. Release them to others with: queue-over-sql consumer "
                f"release {consumer}"
            )
        raise


_FUNCTION = "transform"
_POLL_SECONDS = 1


commands = Commands(PANEL)


@commands.add("process")
def process(
    session: CommandSession,
    *,
    queue: QueueName,
    target: Annotated[
        str,
        argument(
            "MODULE:FUNCTION",
            "Import path of the transformation. It gets a streaming DataFrame of messages and "
            "returns the result. Without a colon the function is named transform.",
        ),
    ],
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            metavar="FOLDER",
            show_default=False,
            help="Checkpoint folder of the query. Use the same one to continue after a stop.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FOLDER", help="Folder of Parquet files to append to."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="QUEUE", help="The queue to publish to.")
    ] = None,
    message: Annotated[
        str | None,
        typer.Option(
            "--message",
            metavar="MODULE:FUNCTION",
            help="Import path of a function that turns the result into messages for --to. The "
            "function returns a DataFrame with the column payload, and optionally key, kind ….",
        ),
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option(
            "--consumer",
            metavar="ID",
            show_default="process-QUEUE",
            help="Name of the durable consumer; keep it the same at each start.",
        ),
    ] = None,
    every: Annotated[
        float | None,
        duration(
            "Run forever, with a batch at this interval. Without this option, process the "
            "messages that are there now.",
            show_default=False,
        ),
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option(
            "--max-messages", metavar="N", min=1, help="Largest number of messages per batch."
        ),
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            "--partition-by",
            metavar="COLUMN",
            help="Partition the files of --output by this column. Repeatable.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="An option of the stream reader. Repeatable."
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Stream a queue through a transformation, and write to Parquet, to a queue, or to both.

    Processing is exactly once: after a crash, start the command again with the same arguments.
    After SIGTERM or Ctrl-C the command stops the query, reports how many messages are left, and
    ends with exit code 0. The next run repeats an interrupted batch.

    Example: queue-over-sql spark process files work:hashes --output hashes --checkpoint state
    """
    if output is None and to is None:
        raise typer.BadParameter("give --output, --to, or both")
    # Report a wrong name before Spark is started.
    check_function(target, _FUNCTION)
    if message is not None:
        check_function(message, _FUNCTION, "--message")
    url, options = session.url, parse_texts(option or (), "--option")
    _let_workers_import(os.getcwd())  # noqa: PTH109 - an import path is a string
    from queue_over_sql.spark import usual_consumer

    done, claims_as = _Processed(), consumer or usual_consumer(queue)
    with (
        reporting_what_is_held(session, queue, claims_as),
        spark_session(session, master, conf) as spark,
        stop_on_signals() as stop,
        ended_by(stop),
    ):
        from queue_over_sql.spark import process as start

        transform = load_function(target, _FUNCTION)
        made = None if message is None else load_function(message, _FUNCTION, "--message")
        query = start(
            spark,
            queue,
            transform,
            checkpoint=checkpoint,
            output=output,
            to=to,
            message=made,
            url=url,
            **session.tables,
            consumer_id=claims_as,
            every=every,
            max_messages=max_messages,
            partition_by=partition_by or (),
            options=options,
        )
        with session.output.progress(total_known=False) as bar:
            task = bar.add_task(f"Processing {queue}", total=None)
            _follow(query, done, lambda: bar.update(task, completed=done.messages), stop)
    _report(session, queue, claims_as, done, stopped=stop.requested.is_set())


class _Processed:
    """The query's progress so far."""

    def __init__(self) -> None:
        self.messages = 0
        self.batches = 0
        self._last = -1

    def take(self, progress: list[Any]) -> None:
        for each in progress:
            if each["batchId"] > self._last and each["numInputRows"]:
                self._last = each["batchId"]
                self.messages += each["numInputRows"]
                self.batches += 1


def _report(
    session: CommandSession, queue: str, consumer: str, done: _Processed, *, stopped: bool
) -> None:
    left = left_in(session, queue, consumer) if stopped or not done.messages else None
    human = (
        f"Processed {counted(done.messages, 'message')} of queue {queue} in "
        f"{counted(done.batches, 'batch', 'batches')}."
    )
    rest = left.waiting + left.own if stopped and left is not None else None
    if rest:
        are = "message is" if rest == 1 else "messages are"
        human += f" Stopped; {rest:,} {are} left. Start it again to continue."
    fields = {"messages": done.messages, "batches": done.batches, "stopped": stopped, "left": rest}
    session.output.record({"queue": queue, **fields}, human=human)
    if not done.messages and left is not None and left.others:
        session.output.note(
            f"Other consumers hold {left.others:,} of its messages; see: queue-over-sql consumers"
        )


def _follow(
    query: StreamingQuery, done: _Processed, show: Callable[[], object], stop: Stop
) -> None:
    while not query.awaitTermination(_POLL_SECONDS):
        done.take(query.recentProgress)
        show()
        if stop.requested.is_set():
            query.stop()
    done.take(query.recentProgress)


def _let_workers_import(folder: str) -> None:
    """Let Spark's workers import the transformation's module from the same place."""
    paths = [folder, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
