"""What a task of a stream does: claim one round, unless that was done, and read it."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import InputPartition

from queue_over_sql.backoff import Backoff
from queue_over_sql.dialects.requests import lease_of_round
from queue_over_sql.durable import round_store as rounds
from queue_over_sql.durable.consumer import durable_consumer
from queue_over_sql.errors import DatabaseUnavailable, UnsupportedByEngine
from queue_over_sql.queue import core_of
from queue_over_sql.spark.columns import message_columns, read_batches
from queue_over_sql.spark.databases import queue_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from sqlalchemy import Connection

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.durable.consumer import DurableConsumer
    from queue_over_sql.durable.round_store import Round
    from queue_over_sql.queue import Queue
    from queue_over_sql.spark.options import Location
    from queue_over_sql.spark.stream.options import StreamOptions


_log = logging.getLogger(__name__)
T = TypeVar("T")
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


@dataclasses.dataclass
class RoundPart(InputPartition):
    """One round as a partition.

    Attributes:
        label: of its database.
        wanted: the round as the driver knows it.
        epoch: of the query; the tasks of another one are refused.
    """

    label: str
    wanted: Round
    epoch: int


def consumer_at(location: Location, options: StreamOptions) -> DurableConsumer:
    """The durable consumer of a stream in one database, as this process sees it."""
    return durable_consumer(
        queue_at(location, options.queue),
        options.consumer_id,
        owner=f"{socket.gethostname()}:{os.getpid()}",
        timeout=options.consumer_timeout,
    )


def check_claim_mode(consumer: DurableConsumer, options: StreamOptions) -> None:
    """Refuse that executors claim where the database cannot let them.

    Raises:
        UnsupportedByEngine: it cannot.
    """
    if options.claim_mode == "executor" and not consumer.claims_apart:
        msg = (
            "option claimMode: this database takes only claimMode=driver, which it does by "
            "itself: leave out the option"
        )
        raise UnsupportedByEngine(msg)


def read_part(options: StreamOptions, part: RoundPart) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a round, oldest first.

    It is claimed in a transaction that is over before the first message is handed on, so that a
    slow sink holds no lock. At the end the fence is looked at once more: who takes the consumer
    over or releases it while this task reads may have changed what it has read.

    Raises:
        ConsumerFenced: another query has taken the consumer over.
        RoundsGone: the round was given back, or is acknowledged.
        DatabaseUnavailable: the database is away for longer than ``reconnectTimeout``.
        RuntimeError: fewer messages came than the round holds.
    """
    task = _Task(options, part)
    if not outlast(task.claimed, options.reconnect_timeout):
        return
    came = 0
    for batch in task.messages():
        came += batch.num_rows
        yield batch
    outlast(lambda: task.check(came), options.reconnect_timeout)


class _Task:
    """One partition on an executor."""

    def __init__(self, options: StreamOptions, part: RoundPart) -> None:
        self._options = options
        self._part = part
        self._location = options.locations[part.label]

    def claimed(self) -> int:
        """How many messages the round stamped, claiming it now where nobody has."""
        return self._connections.run(self._claim, atomic=True)

    def messages(self) -> Iterator[pa.RecordBatch]:
        """Read what the round stamped and still holds."""
        queue, number = self._queue, self._part.wanted.consumer_round
        epoch = self._part.epoch if self._options.include_epoch else None
        columns = message_columns(queue, self._options, epoch=epoch)
        live = core_of(queue).context.tables.live.c
        stamped = columns.select().where(
            live.consumer_id == self._options.consumer_id,
            live.consumer_round == number,
            live.lease_expires_at == lease_of_round(number),
        )
        ordered = stamped.order_by(live.priority, live.available_at, live.id)
        yield from read_batches(queue, columns, ordered, self._options.batch_bytes)

    def check(self, came: int) -> None:
        """Make sure that the round is still the query's, and that all of it came.

        Raises:
            ConsumerFenced: another query has the consumer.
            RoundsGone: the round is acknowledged, or was given back.
            RuntimeError: fewer messages came than the round holds.
        """
        number = self._part.wanted.consumer_round

        def act(connection: Connection) -> int:
            claimed = self._claim(connection)
            if came >= claimed:
                return 0
            # Those that failed, or that an operator removed, are not there any more.
            sql, consumer_id = core_of(self._queue).context.sql, self._options.consumer_id
            return rounds.count_rounds(connection, sql, consumer_id, number - 1, number)

        there = self._connections.run(act, atomic=True)
        if there > came:
            name = self._options.consumer_id
            msg = (
                f"round {number} of {name!r}: {came} of {there} messages were read, so this task "
                "fails, to be run again; where Spark gives the query up, start it again"
            )
            raise RuntimeError(msg)

    @property
    def _queue(self) -> Queue:
        return queue_at(self._location, self._options.queue)

    @property
    def _connections(self) -> Connections:
        return core_of(self._queue).context.connections

    def _claim(self, connection: Connection) -> int:
        consumer = consumer_at(self._location, self._options)
        return consumer.claim_round(connection, self._part.wanted, self._part.epoch)


def outlast(act: Callable[[], T], seconds: float) -> T:
    """Run an act that is safe to repeat, again and again while the database is away.

    Raises:
        DatabaseUnavailable: it is away for longer than so many seconds.
    """
    deadline = time.monotonic() + seconds
    backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while True:
        try:
            return act()
        except DatabaseUnavailable as error:
            pause = backoff.pause()
            if time.monotonic() + pause > deadline:
                raise
            _log.warning("Trying again in %.1f s: %s", pause, error)
        time.sleep(pause)
