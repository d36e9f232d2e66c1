"""Options of ``spark.readStream``."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Final, Literal

from queue_over_sql.durable.registration import DEFAULT_TIMEOUT, check_consumer_id
from queue_over_sql.schema.system_tables import CONSUMER_LENGTH
from queue_over_sql.spark.options import (
    MessageOptions,
    a_count,
    a_flag,
    one_of,
    option,
    some_seconds,
)

NEVER: Final = "never"


def a_timeout(name: str, text: str) -> float | None:
    """A duration, or ``never``.

    Raises:
        ValueError: it is neither.
    """
    return None if text.strip().lower() == NEVER else some_seconds(name, text)


def a_consumer(name: str, text: str) -> str:
    """What may identify a durable consumer.

    Raises:
        ValueError: the text cannot.
    """
    try:
        return check_consumer_id(text.strip())
    except ValueError:
        msg = f"option {name} must be 1 to {CONSUMER_LENGTH} of A-Z a-z 0-9 . _ -, not {text!r}"
        raise ValueError(msg) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOptions(MessageOptions):
    """How a stream claims.

    Attributes:
        consumer_id: who claims: the same for each start of one query, and of no other query.
        max_messages_per_trigger: the most a micro-batch takes of all databases together: what is
            claimed in one transaction by a driver, and acknowledged in one.
        messages_per_partition: the most a task takes.
        claim_mode: ``executor``: the tasks claim, side by side; ``driver``: the driver claims
            before the batch starts, strictly oldest first; ``auto``: executors where the
            database can skip locked rows.
        poll_interval: how long an empty answer holds, in seconds.
        on_ack: ``delete`` or ``archive`` what is done; ``queue`` for what the queue's setting says.
        consumer_timeout: how long the claims are kept for a query that does not run, in seconds;
            None for ever.
        fail_on_data_loss: fail where the checkpoint and the queue do not fit, instead of going on
            from the queue.
        include_epoch: whether there is a column ``consumer_epoch``, which ``settle`` needs: which
            life of the query has read a row, so another one at a replay.
        reconnect_timeout: how long a database may be away before the query fails, in seconds.
    """

    used_by: ClassVar[str] = "streams (spark.readStream)"

    consumer_id: str = option(a_consumer, default="")
    max_messages_per_trigger: int = option(a_count, default=500_000)
    messages_per_partition: int = option(a_count, default=25_000)
    claim_mode: Literal["auto", "executor", "driver"] = option(
        one_of("auto", "executor", "driver"), default="auto"
    )
    poll_interval: float = option(some_seconds, default=0.2)
    on_ack: Literal["queue", "delete", "archive"] = option(
        one_of("queue", "delete", "archive"), default="queue"
    )
    consumer_timeout: float | None = option(a_timeout, default=DEFAULT_TIMEOUT)
    fail_on_data_loss: bool = option(a_flag, default=True)
    include_epoch: bool = option(a_flag, default=False)
    reconnect_timeout: float = option(some_seconds, default=120.0)

    def __post_init__(self) -> None:
        if not self.consumer_id:
            msg = (
                "option consumerId is missing: a stream needs a name of its own under which it "
                "claims, and under which it goes on after a restart"
            )
            raise ValueError(msg)

    @property
    def ending(self) -> str | None:
        """What ``DurableConsumer`` is told to do with what is done; None for the queue's way."""
        return None if self.on_ack == "queue" else self.on_ack
