"""Who has a durable consumer: its registration, its epoch, and giving back what it holds."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from queue_over_sql.durable import round_store as acts
from queue_over_sql.durable.round_store import Registration
from queue_over_sql.durations import Duration, instant, to_microseconds
from queue_over_sql.errors import ConsumerFenced, ConsumerNotFound, ConsumerTaken, RoundsGone
from queue_over_sql.schema.system_tables import CONSUMER_LENGTH, OWNER_LENGTH
from queue_over_sql.store import consumers as registrations

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from queue_over_sql.dialects.base import QueueDialect
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.schema.system_tables import SystemTables


T = TypeVar("T")

DEFAULT_TIMEOUT: Final = 7 * 86_400.0
"""How long what a durable consumer holds is kept for it without a sign of life, in seconds."""

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{CONSUMER_LENGTH}}}\Z")
# How often a sign of life is written at most.
_HEARTBEAT_US = 60_000_000
# How many programs may register under one name at the same moment before one gives up.
_RACES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class RoundState:
    """Where a durable consumer stands.

    Attributes:
        epoch: of the program that has it.
        claimed_round: the last round that was opened.
        acked_round: the last round that is done; those between the two are outstanding.
        owner: the program that has it.
    """

    epoch: int
    claimed_round: int
    acked_round: int
    owner: str | None


def check_consumer_id(consumer_id: object) -> str:
    """Let the name of a durable consumer pass.

    Raises:
        TypeError, ValueError: it cannot be one.
    """
    if not isinstance(consumer_id, str):
        msg = f"consumer_id must be a str, not {type(consumer_id).__name__}"
        raise TypeError(msg)
    if not _NAME.match(consumer_id):
        msg = (
            f"consumer_id must be 1 to {CONSUMER_LENGTH} letters, digits, dots, dashes and "
            f"underscores, not {consumer_id[:60]!r}"
        )
        raise ValueError(msg)
    return str.__str__(consumer_id)


class DurableRegistration:
    """The registration of a durable consumer, and the fence by its epoch.

    Args:
        context: of the queue.
        came_back: told that messages are there again.
        consumer_id: 1 to 36 of ``A-Z a-z 0-9 . _ -``.
        owner: who this program is, for people: ``host:pid``.
        timeout: how long its claims are kept without a sign of life; None for ever.

    Raises:
        TypeError, ValueError: an argument has no sensible value.
    """

    def __init__(
        self,
        context: QueueContext,
        came_back: Callable[[int | None], None],
        consumer_id: str,
        *,
        owner: str,
        timeout: Duration | None = DEFAULT_TIMEOUT,
    ) -> None:
        self.consumer_id = check_consumer_id(consumer_id)
        self._context = context
        self._came_back = came_back
        self._owner = owner[:OWNER_LENGTH]
        self._timeout_us = None if timeout is None else to_microseconds(timeout, "timeout")
        self._taken: Registration | None = None

    @property
    def epoch(self) -> int:
        """The epoch of this program.

        Raises:
            RuntimeError: it has not taken the consumer over.
        """
        return self._mine.epoch

    @property
    def registered_at(self) -> int:
        """When the consumer was registered, in microseconds: what a checkpoint is to remember.

        One that was dropped or expired is registered anew, and its rounds begin anew at 1; only by
        this can a checkpoint tell its rounds from others of the same numbers.

        Raises:
            RuntimeError: it has not taken the consumer over.
        """
        return self._mine.started_at

    def check_registration(self, registered_at: int) -> None:
        """See that a checkpoint is of this registration of the consumer.

        Args:
            registered_at: what the checkpoint remembers.

        Raises:
            RoundsGone: it is of another one.
            RuntimeError: it has not taken the consumer over.
        """
        if registered_at != self.registered_at:
            self._gone(
                f"the checkpoint is of its registration of {_moment(registered_at)}, but it was "
                f"registered anew at {_moment(self.registered_at)}, and its rounds began anew."
            )

    def take_over(self) -> int:
        """Make the consumer this program's, registering it where it is new.

        Returns:
            The last acknowledged round; those after it are outstanding and may be read again.

        Raises:
            ConsumerTaken: it reads another queue, or is a consumer of another sort.
        """
        if self.consumer_id == registrations.SQL_CLIENTS:
            msg = f"{self.consumer_id!r} is the consumer of SQL clients; give another name"
            raise ConsumerTaken(msg)
        for _ in range(_RACES):
            taken = self._run(self._take_over, atomic=True)
            if taken is not None:
                self._taken = taken
                return taken.acked_round
        msg = f"Durable consumer {self.consumer_id!r} is being registered by others, too; try again"
        raise ConsumerTaken(msg)

    @property
    def renewal_seconds(self) -> float:
        """How often a program that does nothing else should give a sign of life."""
        return self._renewal_us / 1_000_000

    def renew(self) -> None:
        """Give a sign of life, as ``advance`` does, while a batch takes its time.

        Raises:
            ConsumerFenced: another program has the consumer.
            RoundsGone: the consumer was given up.
        """

        def act(connection: Connection) -> None:
            if self._renewal_is_due(self._locked(connection, self.epoch)):
                self._change(connection, **self._life())

        self._run(act, atomic=True)

    def state(self) -> RoundState:
        """Where the consumer stands, whoever has it.

        Raises:
            RoundsGone: there is no such consumer any more.
        """
        found = self._run(self._registered)
        if found is None:
            self._gone("it is not registered.")
        return RoundState(found.epoch, found.claimed_round, found.acked_round, found.owner)

    def outstanding(self) -> int:
        """Count the messages that are claimed and not acknowledged."""

        def act(connection: Connection) -> int:
            found = self._registered(connection)
            if found is None:
                return 0
            span = (self.consumer_id, found.acked_round, found.claimed_round)
            return acts.count_rounds(connection, self._context.sql, *span)

        return self._run(act)

    def release(self) -> int:
        """Give back, uncounted, all that is outstanding, and fence whoever has the consumer.

        Returns:
            How many messages.

        Raises:
            ConsumerNotFound: there is no such consumer.
        """

        def act(connection: Connection) -> int:
            found, count = self._give_back(connection)
            done, fenced = found.claimed_round, found.epoch + 1
            self._change(connection, epoch=fenced, acked_round=done, owner=None)
            return count

        return self._given_back(act)

    def drop(self) -> int:
        """Give back, uncounted, all that is outstanding, and forget the consumer.

        Returns:
            How many messages.

        Raises:
            ConsumerNotFound: there is no such consumer.
        """

        def act(connection: Connection) -> int:
            _, count = self._give_back(connection)
            registrations.remove(connection, self._system, self.consumer_id)
            return count

        return self._given_back(act)

    # -- inner

    @property
    def _mine(self) -> Registration:
        if self._taken is None:
            msg = "call take_over() first"
            raise RuntimeError(msg)
        return self._taken

    @property
    def _system(self) -> SystemTables:
        return self._context.tables.system

    @property
    def _dialect(self) -> QueueDialect:
        return self._context.dialect

    def _run(self, act: Callable[[Connection], T], *, atomic: bool = False) -> T:
        # A round that a checkpoint knows must be there after a loss of power, too.
        return self._context.run(act, atomic=atomic, durable=atomic)

    def _registered(self, connection: Connection) -> Registration | None:
        found = acts.registration(connection, self._system, self._dialect, self.consumer_id)
        return found if found is not None and self._is_mine(found) else None

    def _locked(
        self, connection: Connection, epoch: int, up_to: int = 0, *, shared: bool = False
    ) -> Registration:
        system, dialect, name = self._system, self._dialect, self.consumer_id
        found = acts.lock(connection, system, dialect, name, shared=shared)
        return self._checked(found, epoch, up_to)

    def _checked(self, found: Registration | None, epoch: int, up_to: int) -> Registration:
        if found is None or not self._is_mine(found):
            self._gone("it is not registered any more.")
        if found.epoch != epoch:
            raise ConsumerFenced(self.consumer_id, epoch, found.epoch, found.owner)
        if found.expired:
            self._gone("it was not heard of for its timeout.")
        if up_to > found.claimed_round:
            last = found.claimed_round
            self._gone(f"round {up_to} was never opened; the last one that was is {last}.")
        return found

    def _is_mine(self, found: Registration) -> bool:
        tables = self._context.tables
        theirs = (found.durable, found.table_prefix, found.queue)
        return theirs == (True, tables.prefix, tables.queue)

    def _gone(self, what: str) -> NoReturn:
        raise RoundsGone(self.consumer_id, what)

    def _change(self, connection: Connection, **values: Any) -> None:
        acts.change(connection, self._system, self.consumer_id, values)

    def _life(self) -> dict[str, Any]:
        expires_at = acts.expiry(self._dialect, self._timeout_us)
        return {"heartbeat_at": self._dialect.now(), "expires_at": expires_at}

    @property
    def _renewal_us(self) -> int:
        timeout = self._timeout_us
        return _HEARTBEAT_US if timeout is None else min(_HEARTBEAT_US, timeout // 3)

    def _renewal_is_due(self, found: Registration) -> bool:
        return found.now - found.heartbeat_at >= self._renewal_us

    def _take_over(self, connection: Connection) -> Registration | None:
        system, dialect, name = self._system, self._dialect, self.consumer_id
        me = {"owner": self._owner, "host": socket.gethostname()[:255], "pid": os.getpid()}
        found = acts.lock(connection, system, dialect, name)
        if found is None:
            tables = self._context.tables
            identity = {"consumer_id": name, "name": name}
            place = {"table_prefix": tables.prefix, "queue": tables.queue}
            values = {**identity, **place, **me, **self._life()}
            added = acts.add(connection, system, dialect, values)
            return acts.lock(connection, system, dialect, name) if added else None
        if not self._is_mine(found):
            raise self._another(found)
        anew: dict[str, Any] = {}
        if found.expired:
            # What it held counts as given back, so an old checkpoint must not go on in silence.
            self._unclaim(connection, found)
            anew = {"claimed_round": 0, "acked_round": 0, "started_at": dialect.now()}
        self._change(connection, epoch=found.epoch + 1, **me, **anew, **self._life())
        return acts.lock(connection, system, dialect, name)

    def _another(self, found: Registration) -> ConsumerTaken:
        whose = "is an ordinary consumer"
        if found.durable:
            whose = f"reads queue {found.queue!r} (table prefix {found.table_prefix!r})"
        return ConsumerTaken(
            f"The name {self.consumer_id!r} is taken: that consumer {whose}, not queue "
            f"{self._context.name!r}. Give each query a consumerId of its own, or drop the old "
            "consumer first (queue-over-sql consumer drop)."
        )

    def _unclaim(self, connection: Connection, found: Registration) -> int:
        """Give back all that is outstanding, and remove the seals."""
        name, sql = self.consumer_id, self._context.sql
        span = (name, found.acked_round, found.claimed_round)
        count = acts.unclaim_rounds(connection, sql, *span)
        acts.forget_rounds(connection, self._system, name)
        return count

    def _give_back(self, connection: Connection) -> tuple[Registration, int]:
        found = acts.lock(connection, self._system, self._dialect, self.consumer_id)
        if found is None or not self._is_mine(found):
            raise ConsumerNotFound(self.consumer_id)
        return found, self._unclaim(connection, found)

    def _given_back(self, act: Callable[[Connection], int]) -> int:
        count = self._run(act, atomic=True)
        if count:
            self._came_back(None)
        return count


def _moment(microseconds: int) -> str:
    return instant(microseconds).isoformat(timespec="milliseconds")
