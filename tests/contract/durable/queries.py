"""Durable consumers for tests: two ways to claim rounds, and their content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queue_over_sql.durable.consumer import AdvanceRequest, DurableConsumer, Round
from queue_over_sql.queue import core_of
from queue_over_sql.queues.decoding import decoded_plainly
from queue_over_sql.sql.operation import Operation

if TYPE_CHECKING:
    from queue_over_sql import Queue


class Query:
    """A query as a streaming engine runs it, without the engine: it remembers its checkpoint.

    Args:
        queue: that it reads.
        apart: whether its readers claim the rounds, where the engine can.
        name: its consumerId.
        timeout: as in ``DurableConsumer``.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        apart: bool = False,
        name: str = "query",
        timeout: float | None = 3600.0,
        checkpoint: int = 0,
    ) -> None:
        self.queue = queue
        self.consumer: DurableConsumer = DurableConsumer(
            queue, name, owner="here:1", timeout=timeout
        )
        self.apart = apart and self.consumer.claims_apart
        self.checkpoint = checkpoint
        self.consumer.take_over()

    def request(self, most: int | None = None, each: int = 1000, **bounds: Any) -> AdvanceRequest:
        """What to open next."""
        return AdvanceRequest(most, each, executor=self.apart, **bounds)

    def plan(self, most: int | None = None, each: int = 1000, **bounds: Any) -> list[Round]:
        """Open the next rounds."""
        end = self.consumer.advance(self.checkpoint, self.request(most, each, **bounds))
        return self.consumer.rounds(self.checkpoint, end)

    def read(self, wanted: Round) -> list[Any]:
        """The payloads of a round, which is claimed first where that is the reader's part."""
        consumer, core = self.consumer, core_of(self.queue)
        connections = core.context.connections
        if self.apart:
            epoch = consumer.epoch
            ended: dict[int, Any] = {}
            connections.run(
                Operation(lambda c: consumer.claim_round(c, wanted, epoch, ended), atomic=True)
            )
            consumer.note_ended(ended)
        rows = connections.run(lambda c: consumer.read_round(c, wanted.consumer_round))
        return [decoded_plainly(core.context, row, core).payload for row in rows]

    def ids(self, wanted: Round) -> list[int]:
        """The ids of a round that was claimed."""
        consumer = self.consumer
        connections = core_of(self.queue).context.connections
        rows = connections.run(lambda c: consumer.read_round(c, wanted.consumer_round))
        return [row.id for row in rows]

    def batch(self, most: int | None = None, each: int = 1000, **bounds: Any) -> list[list[Any]]:
        """Open rounds, read them and note the checkpoint, as one micro-batch does."""
        opened = self.plan(most, each, **bounds)
        payloads = [self.read(each_round) for each_round in opened]
        if opened:
            self.checkpoint = opened[-1].consumer_round
        return payloads

    def done(self) -> None:
        """Acknowledge all batches so far."""
        self.consumer.ack(self.checkpoint)
