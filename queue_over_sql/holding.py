"""Holding: what the holder of claimed messages does with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from queue_over_sql.delivery import as_list, marking_settled
from queue_over_sql.durations import Duration
from queue_over_sql.message import Message

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from queue_over_sql.settling import SettlerOfQueue


class QueueHolding:
    """The part of ``Queue`` that ends claims, each verb under the fence of the claim."""

    def __init__(self, settler: SettlerOfQueue) -> None:
        self._settler = settler

    def ack(
        self,
        messages: Message | Sequence[Message],
        *,
        connection: Connection | Session | None = None,
    ) -> None:
        """Finish messages: they are removed, or archived where finished ones are kept.

        Args:
            messages: one or several, of any claims.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost: names those that this claim does not hold any more; all others were acked.
            ConsumerExpired: this consumer missed its heartbeat; nothing was changed.
        """
        batch = as_list(messages)
        with marking_settled(batch):
            self._settler.ack(batch, connection)

    def nack(
        self,
        messages: Message | Sequence[Message],
        *,
        error: str | BaseException | None = None,
        delay: Duration | None = None,
        connection: Connection | Session | None = None,
    ) -> None:
        """Report failures: each message is retried later, or a dead letter when out of attempts.

        Args:
            messages: one or several.
            error: the reason.
            delay: instead of what the retry policy says, its end included.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``.
        """
        batch = as_list(messages)
        with marking_settled(batch):
            self._settler.nack(batch, error, delay, connection)

    def release(
        self,
        messages: Message | Sequence[Message],
        *,
        connection: Connection | Session | None = None,
    ) -> None:
        """Give messages back untouched, at their place; this delivery is not counted.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``.
        """
        batch = as_list(messages)
        with marking_settled(batch):
            self._settler.release(batch, connection)

    def reject(
        self,
        messages: Message | Sequence[Message],
        reason: str,
        *,
        connection: Connection | Session | None = None,
    ) -> None:
        """End messages as dead letters, never to be delivered again.

        Args:
            messages: one or several.
            reason: kept in the archive as ``last_error``.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``.
        """
        batch = as_list(messages)
        with marking_settled(batch):
            self._settler.reject(batch, reason, connection)

    def extend(
        self,
        messages: Message | Sequence[Message],
        lease: Duration | None = None,
        *,
        connection: Connection | Session | None = None,
    ) -> None:
        """Renew leases, counted from now.

        Args:
            messages: one or several.
            lease: the new length; None for that of each claim.
            connection: the caller's own transaction; it is not committed here.

        Raises:
            ClaimLost, ConsumerExpired: as in ``ack``.
        """
        self._settler.extend(as_list(messages), lease, connection)
