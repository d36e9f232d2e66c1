"""The command `consumers`, and those on durable consumers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Final

from queue_over_sql import QueueNotFound
from queue_over_sql.cli.operations import add_commands
from queue_over_sql.cli.options import MONITORING_PANEL, argument
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.cli.values import format_age
from queue_over_sql.values.humanize import format_duration

if TYPE_CHECKING:
    from queue_over_sql import ConsumerInfo, QueueService

DURABLE_COLUMNS: Final = (
    *("durable", "queue", "#epoch", "#rounds out", "#messages out", "…owner", "#last seen"),
    "#kept for",
)

ConsumerId = Annotated[str, argument("CONSUMER", "The consumerId of a streaming query.")]


durable_commands = Commands(
    MONITORING_PANEL,
    "consumer",
    help="Durable consumers: the streaming queries that read queues (see `consumers`).",
)


add_commands(durable_commands, ConsumerId, "release-consumer", "drop-consumer")


def _outstanding(service: QueueService, consumer: ConsumerInfo) -> int | None:
    from queue_over_sql.inside.streams import DurableConsumer  # only where there is one

    try:
        queue = service.queue(consumer.queue or "")
    except QueueNotFound:
        return None
    return DurableConsumer(queue, consumer.consumer_id, owner="").outstanding()


def _durable_row(consumer: ConsumerInfo, held: int | None) -> tuple[object, ...]:
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


CONSUMER_COLUMNS = ("…name", "…host", "#pid", "id", "#up for", "#last heartbeat")
SHOWN_OF_ID = 8


commands = Commands(MONITORING_PANEL)


@commands.add("consumers")
def consumers(session: CommandSession) -> None:
    """List the registered consumers. Exit code 3: there is none.

    The table shows the first characters of each id, and ages instead of times. --json has complete
    ids and times, and the kinds that each consumer knows. The column "handles" shows its queues.
    The number after a queue says how many handlers its workers call at once.

    Durable consumers (streaming queries of Spark) have a separate table. The number in the column
    "epoch" grows each time a query starts. A round is the set of messages that a query claims at
    once. The column "out" shows how many rounds and how many messages the query has claimed but not
    acknowledged. The column "kept for" shows how long a query keeps its messages after its
    heartbeats stop.
    """
    with session.connect() as service:
        found = service.consumers()
        durable = [consumer for consumer in found if consumer.durable]
        held = {each.consumer_id: _outstanding(service, each) for each in durable}
    running = [consumer for consumer in found if not consumer.durable]
    if not found:
        session.output.nothing("No consumer is registered.")
    session.output.listing(
        running,
        dataclasses.asdict,
        (*CONSUMER_COLUMNS, "…handles"),
        lambda each: (*consumer_row(each), _handles(each)),
    )
    session.output.listing(
        durable,
        lambda each: {**dataclasses.asdict(each), "outstanding": held[each.consumer_id]},
        DURABLE_COLUMNS,
        lambda each: _durable_row(each, held[each.consumer_id]),
    )


def _handles(consumer: ConsumerInfo) -> str:
    if consumer.permanent:
        return "unknown"
    found = [
        each.queue if each.concurrency is None else f"{each.queue} ({each.concurrency})"
        for each in consumer.handles
    ]
    return ", ".join(found) or "nothing"


def consumer_row(consumer: ConsumerInfo) -> tuple[object, ...]:
    """The cells of ``CONSUMER_COLUMNS``."""
    return (
        consumer.name,
        consumer.host,
        "" if consumer.permanent else consumer.pid,
        consumer.consumer_id[:SHOWN_OF_ID],
        format_age(consumer.started_at),
        "none needed" if consumer.permanent else f"{format_age(consumer.heartbeat_at)} ago",
    )
