"""The commands on durable consumers, the readers of streaming queries: `consumer release|drop`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from queue_over_sql import ConsumerInfo, QueueNotFound, QueueService
from queue_over_sql.cli.options import MONITORING_PANEL, YesOption, confirm
from queue_over_sql.cli.session import Session, command
from queue_over_sql.cli.values import counted, format_age, format_duration

DURABLE_COLUMNS: Final = (
    *("durable", "queue", "#epoch", "#rounds out", "#messages out", "…owner", "#last seen"),
    "#kept for",
)

ConsumerId = Annotated[
    str,
    typer.Argument(
        metavar="CONSUMER", show_default=False, help="The consumerId of a streaming query."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the group of this module to `app`."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Durable consumers: the streaming queries that read queues (see `consumers`).",
    )
    command(group, "release", panel=MONITORING_PANEL)(release)
    command(group, "drop", panel=MONITORING_PANEL)(drop)
    app.add_typer(group, name="consumer", rich_help_panel=MONITORING_PANEL)


def release(session: Session, *, consumer: ConsumerId, yes: YesOption = False) -> None:
    """Give back what a query holds that died and will not come back; others get it at once.

    A query that still runs is stopped by this. What it had written out but not acknowledged is
    delivered again.
    """
    confirm(f"Give back all that {consumer} holds, and stop it where it runs?", yes=yes)
    with session.connect() as service:
        count = service.release_consumer(consumer)
    human = f"Gave back {counted(count, 'message')} of {consumer}."
    session.output.record({"consumer_id": consumer, "released": count}, human=human)


def drop(session: Session, *, consumer: ConsumerId, yes: YesOption = False) -> None:
    """Forget a durable consumer, and give back what it holds.

    A query that comes back with its old checkpoint is refused.
    """
    confirm(f"Forget {consumer}, and give back all that it holds?", yes=yes)
    with session.connect() as service:
        count = service.drop_consumer(consumer)
    human = f"Dropped {consumer}; {counted(count, 'message')} were given back."
    session.output.record({"consumer_id": consumer, "released": count}, human=human)


def outstanding(service: QueueService, consumer: ConsumerInfo) -> int | None:
    """How many messages a durable consumer holds; None where its queue cannot be asked."""
    try:
        queue = service.queue(consumer.queue or "")
    except QueueNotFound:
        return None
    return queue.durable_consumer(consumer.consumer_id, owner="").outstanding()


def show(session: Session, found: Sequence[ConsumerInfo], held: Sequence[int | None]) -> None:
    """A table of durable consumers."""
    rows = [_row(consumer, count) for consumer, count in zip(found, held, strict=True)]
    session.output.table(None, DURABLE_COLUMNS, rows)


def _row(consumer: ConsumerInfo, held: int | None) -> tuple[object, ...]:
    rounds = (consumer.claimed_round or 0) - (consumer.acked_round or 0)
    kept = consumer.expires_at - consumer.heartbeat_at
    return (
        consumer.consumer_id,
        consumer.queue,
        consumer.epoch,
        f"{rounds:,}",
        "-" if held is None else f"{held:,}",
        consumer.owner or "released",
        f"{format_age(consumer.heartbeat_at)} ago",
        "ever" if consumer.never_expires else format_duration(kept.total_seconds()),
    )
