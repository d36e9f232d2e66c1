"""A task of a stream: claim one round, unless it is already claimed, and read it."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import InputPartition

from queue_over_sql import inside
from queue_over_sql.errors import DatabaseUnavailable, UnsupportedByEngine
from queue_over_sql.inside.streams import DurableConsumer
from queue_over_sql.spark.columns import message_columns, read_batches
from queue_over_sql.spark.databases import queue_at, service_at
from queue_over_sql.values.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from sqlalchemy import Connection

    from queue_over_sql import Queue
    from queue_over_sql.inside.streams import Round
    from queue_over_sql.spark.options import Location, StreamOptions


_log = logging.getLogger(__name__)
T = TypeVar("T")
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


@dataclasses.dataclass
class RoundPart(InputPartition):
    """One round as a partition: its database, and the driver's epoch."""

    label: str
    wanted: Round
    epoch: int


def consumer_at(location: Location, options: StreamOptions) -> DurableConsumer:
    """The durable consumer of a stream in one database, in this process."""
    return DurableConsumer(
        queue_at(location, options.queue),
        options.consumer_id,
        owner=f"{socket.gethostname()}:{os.getpid()}",
        timeout=options.consumer_timeout,
    )


def check_claim_mode(consumer: DurableConsumer, options: StreamOptions) -> None:
    """Refuse claims by executors if the database does not support them."""
    if options.claim_mode == "executor" and not consumer.claims_apart:
        msg = (
            "option claimMode: this database supports only claimMode=driver, which is the "
            "default: leave out the option"
        )
        raise UnsupportedByEngine(msg)


def read_part(options: StreamOptions, part: RoundPart) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a round, oldest first.

    The transaction of the claim ends before the first message is delivered, so a slow sink holds no
    lock. At the end it checks the fence again: another query may have taken over or released the
    consumer, and changed the messages meanwhile.

    Raises:
        ConsumerFenced: another query took over the consumer.
        RoundsGone: the round was released, or is acknowledged.
        DatabaseUnavailable: the database is unavailable for longer than ``reconnectTimeout``.
        RuntimeError: fewer messages were read than the round holds.
    """
    location, number = options.locations[part.label], part.wanted.consumer_round

    def run(do: Callable[[Connection], T]) -> T:
        def once() -> T:
            return inside.run(service_at(location), do, atomic=True)

        return outlast(once, options.reconnect_timeout)

    ended: dict[int, Any] = {}

    def claim(connection: Connection) -> int:
        consumer = consumer_at(location, options)
        return consumer.claim_round(connection, part.wanted, part.epoch, ended)

    claimed = run(claim)
    consumer_at(location, options).note_ended(ended)
    if not claimed:
        return
    queue, came = queue_at(location, options.queue), 0
    for batch in _messages(queue, options, part):
        came += batch.num_rows
        yield batch

    def left(connection: Connection) -> int:
        if came >= claim(connection):
            return 0
        # Failed messages, and those that an operator removed, are no longer there.
        return consumer_at(location, options).count_round(connection, number)

    there = run(left)
    if there > came:
        msg = (
            f"round {number} of {options.consumer_id!r}: only {came} of {there} messages were "
            "read, so this task fails and Spark repeats it. If Spark ends the query, start it again"
        )
        raise RuntimeError(msg)


def _messages(queue: Queue, options: StreamOptions, part: RoundPart) -> Iterator[pa.RecordBatch]:
    number = part.wanted.consumer_round
    columns = message_columns(queue, options, epoch=part.epoch if options.include_epoch else None)
    live = inside.tables(queue).live.c
    consumer = consumer_at(options.locations[part.label], options)
    stamped = columns.select().where(*consumer.stamped(number))
    # A retry of a group is due later than those behind it.
    age = (live.group_key,) if inside.tables(queue).grouped else (live.priority, live.available_at)
    ordered = stamped.order_by(*age, live.id)
    yield from read_batches(queue, columns, ordered, options.batch_bytes)


def outlast(do: Callable[[], T], seconds: float) -> T:
    """Do what is safe to repeat; retry for a time while the database is unavailable."""
    deadline = time.monotonic() + seconds
    backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while True:
        try:
            return do()
        except DatabaseUnavailable as error:
            pause = backoff.pause()
            if time.monotonic() + pause > deadline:
                raise
            _log.warning("Retrying in %.1f s: %s", pause, error)
        time.sleep(pause)
