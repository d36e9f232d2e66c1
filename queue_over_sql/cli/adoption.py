"""The command that makes a queue of a table that is there."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from queue_over_sql import AdoptedQueue
from queue_over_sql.cli.filters import sql_condition
from queue_over_sql.cli.options import (
    QUEUES_PANEL,
    LeaseOption,
    MaxAttemptsOption,
    PrioritiesOption,
    QueueName,
    RetryOption,
)
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.queues import describe
from queue_over_sql.cli.retries import named_by_path, parse_retry
from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.values import counted

PREFIX_HELP = "What the names of the added columns begin with; needed where the table has such."
ENQUEUE_HELP = "Make messages of all rows that never were."
WHERE_HELP = "Make messages of the rows that never were and match this SQL condition."


def register(app: typer.Typer) -> None:
    """Add this module's command to `app`."""
    command(app, "adopt", panel=QUEUES_PANEL)(adopt)


def adopt(
    session: Session,
    *,
    queue: QueueName,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", show_default=False, help="The table; its schema before a dot."
        ),
    ],
    column_prefix: Annotated[
        str, typer.Option("--column-prefix", metavar="PREFIX", help=PREFIX_HELP)
    ] = "",
    enqueue: Annotated[bool, typer.Option("--enqueue", help=ENQUEUE_HELP)] = False,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", show_default=False, help=WHERE_HELP),
    ] = None,
    lease: LeaseOption = None,
    max_attempts: MaxAttemptsOption = None,
    retry: RetryOption = None,
    priorities: PrioritiesOption = None,
) -> None:
    """Make a queue of a table of yours, whose rows are the messages.

    Adds the columns and indexes of a queue to the table; no row is deleted, ever. No row is a
    message before it is enqueued. Safe to run again, also to enqueue more rows.
    """
    policy = None if retry is None else parse_retry(retry)
    settings: dict[str, Any] = {
        "lease": lease,
        "max_attempts": max_attempts,
        "retry": policy,
        "priorities": priorities,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    with session.connect(retry_policies=named_by_path(policy)) as service:
        adopted = service.adopt_queue(queue, table, column_prefix=column_prefix, **settings)
        count = None
        if enqueue or where is not None:
            count = _enqueue(adopted, where, session.output)
        enqueued = {} if count is None else {"enqueued": count}
        session.output.record(
            {"queue": adopted.name, "table": table, **enqueued, **describe(adopted)},
            human=_summary(adopted.name, table, count),
        )


def _enqueue(queue: AdoptedQueue, where: str | None, output: Output) -> int:
    # A colon would be the beginning of a parameter.
    condition = sql_condition(where)
    with output.progress() as bar:
        task = bar.add_task("Enqueueing", total=queue.count_new(condition))
        return queue.enqueue(condition, progress=lambda count: bar.update(task, completed=count))


def _summary(queue: str, table: str, count: int | None) -> str:
    ready = f"Queue {queue} lives in the table {table}."
    return ready if count is None else f"{ready} {counted(count, 'row')} became messages."
