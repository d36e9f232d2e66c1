"""A consumer's identity and heartbeat; it fences itself if a heartbeat is late.

The deadline uses a clock that also runs while the machine is suspended. It is set before the
heartbeat is sent, so this process considers itself dead no later than the database does. While a
lock keeps heartbeats waiting, no process can declare the consumer dead, so the deadline moves.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Final, Protocol

from queue_over_sql.consumers import registrations
from queue_over_sql.consumers.deaths import Deaths
from queue_over_sql.consumers.handling import Handling
from queue_over_sql.consumers.isolation import Isolation
from queue_over_sql.consumers.lease_renewal import LeaseKeeper
from queue_over_sql.database.repetition import SharedTry
from queue_over_sql.errors import (
    ConsumerExpired,
    DatabaseUnavailable,
    Locked,
    NotPermitted,
    QueueError,
    ServiceClosed,
)
from queue_over_sql.message import Claim
from queue_over_sql.sql.operation import Operation
from queue_over_sql.sql.sessions import BRIEF_SECONDS
from queue_over_sql.values.backoff import Backoff, OutageLog
from queue_over_sql.values.durations import elapsed_clock
from queue_over_sql.values.limits import TOKEN_KEY_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.message import Message
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.settings import ServiceSettings


_log = logging.getLogger(__name__)

_ISOLATION: Final = Isolation(elapsed_clock)

HELD_CLAIMS: Final = "held-claims"
"""The consumer that all processes share for their claims that end with their lease."""

_ROUND_BITS: Final = 62
# Seconds until a heartbeat that failed is tried again.
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 2.0


def new_token_key() -> str:
    """A secret with which a consumer signs the tokens of its claims."""
    return secrets.token_hex(TOKEN_KEY_LENGTH // 2)


def host_name() -> str:
    """The name of this host, as a registration has it."""
    return socket.gethostname()[:255]


class Identity:
    """One registration of a consumer: its id, its rounds, and its deadline."""

    def __init__(self, deadline: float) -> None:
        self.consumer_id = str(uuid.uuid4())
        self.token_key = new_token_key()
        self.deadline = deadline
        self.pid = os.getpid()
        # Whether its heartbeat was started.
        self.kept = False
        self._over = False
        self._round = 0
        self._lock = threading.Lock()

    def next_claim(self) -> Claim:
        """A unique stamp for the next claim of this consumer; thread-safe."""
        with self._lock:
            self._round += 1
            return Claim(self.consumer_id, self._round)

    @property
    def looks_alive(self) -> bool:
        """Whether the deadline is ahead and this is the process that registered."""
        return elapsed_clock() < self.deadline and not self._over and self.pid == os.getpid()

    @property
    def alive(self) -> bool:
        """As ``looks_alive``; the first caller after the deadline ends the identity for good.

        That caller drops its messages. If the answer to a late heartbeat revived the identity, they
        would stay claimed until their leases end.
        """
        here = self.pid == os.getpid()
        if here and elapsed_clock() < self.deadline and not self._over:
            return True
        if not here:
            # The lock may have been held when this process was forked.
            return False
        with self._lock:
            # A heartbeat may have come between.
            self._over = not self.looks_alive
            return not self._over

    def renew(self, deadline: float) -> None:
        """Set another deadline, which lets no identity live again that has ended."""
        with self._lock:
            self.deadline = deadline


class Holder(Protocol):
    """In whose name a queue claims messages."""

    @property
    def consumer_id(self) -> str | None:
        """The id in the stamps of its claims; None before registration."""

    def next_claim(self) -> Claim:
        """A unique stamp for the next claim; registers it if necessary."""

    def recall_by(self, recall: Callable[[], object]) -> None:
        """Call this regularly, to give back messages of interrupted claims."""


class Consumer:
    """The identity of a service, registered at the first use and renewed by heartbeats."""

    def __init__(
        self,
        connections: Connections,
        system: Callable[[], SystemTables],
        settings: ServiceSettings,
        on_register: Callable[[], None],
    ) -> None:
        self._connections = connections
        self._system = system
        self._settings = settings
        self._on_register = on_register
        self._identity: Identity | None = None
        # The keys of the tokens of former identities, by id.
        self._former: dict[str, str] = {}
        # The identities of processes that this one was forked from, with their keys.
        self._inherited: dict[str, str] = {}
        self._lasting: dict[str, LastingHolder] = {}
        self._recalls: dict[Callable[[], object], None] = {}
        self.isolation = _ISOLATION
        self.deaths = Deaths(connections, system, settings, elapsed_clock)
        self._outage = OutageLog("The heartbeat")
        self._retries = Backoff(_FIRST_RETRY, _LAST_RETRY)
        self.handling = Handling(settings.table_prefix)
        # What the registration says of that, and whose it is.
        self._told: tuple[str, str] | None = None
        # Held while one caller stores the kinds that this consumer knows.
        self.declaring = SharedTry(connections.runtime.lock())
        self.keeper = LeaseKeeper(connections.runtime)
        """Renews the leases of messages that callers keep."""
        self._lock = connections.runtime.lock()
        self._registering = SharedTry(self._lock)
        self._closed = False
        self.may_register = True

    @property
    def consumer_id(self) -> str | None:
        """The current id; None before registration."""
        return None if self._identity is None else self._identity.consumer_id

    @property
    def timeout_us(self) -> int:
        """How long a heartbeat is valid; 100 years if no heartbeat thread can run."""
        hundred_years = 100 * 365 * 86_400 * 1_000_000
        return self._settings.consumer_timeout_us if self._connections.background else hundred_years

    def identity(self) -> Identity:
        """The identity to claim with. It registers if there is none or the former one expired."""
        identity = self._identity
        if identity is not None and identity.kept and identity.alive:
            return identity
        # In this order: see ``Connections.dialect``.
        with self._connections.forks.using(), self._registering.begun():
            if self._closed:
                raise ServiceClosed
            identity = self._identity
            if identity is None or not identity.alive:
                if identity is not None:
                    self._retire(identity)
                try:
                    identity = self._identity = self._register()
                except NotPermitted:
                    self.may_register = False
                    raise
        self._on_register()
        identity.kept = True
        return identity

    def next_claim(self) -> Claim:
        """A unique stamp for the next claim, by the identity to claim with."""
        return self.identity().next_claim()

    def lasting(self, name: str = HELD_CLAIMS, host: str = "any process") -> LastingHolder:
        """The holder of claims that end with their lease and not with this process.

        Args:
            name: its consumer id, which all processes with this name share.
            host: what the list of consumers shows instead of a host.
        """
        known = self._lasting.get(name)
        return known or self._lasting.setdefault(name, LastingHolder(self, name, host))

    def token_key(self, consumer_id: str) -> str | None:
        """The key of the tokens of a consumer that this process is or was; None for others."""
        identity, lasting = self._identity, self._lasting.get(consumer_id)
        if identity is not None and identity.consumer_id == consumer_id:
            return identity.token_key
        if lasting is not None:
            return lasting.token_key
        return self._former.get(consumer_id) or self._inherited.get(consumer_id)

    def learn(self, keys: Mapping[str, str]) -> None:
        """Note the keys of tokens that were read, by consumer id; only lasting ones are kept."""
        for consumer_id, key in keys.items():
            if (holder := self._lasting.get(consumer_id)) is not None:
                holder.token_key = key

    def check(self, messages: Sequence[Message], claims: Iterable[Claim]) -> None:
        """Refuse to settle claims of an expired identity.

        Raises:
            ConsumerExpired: the service made one of the claims with an identity that has expired.
            ServiceClosed: the service was stopped and has released its messages.
        """
        if self._closed:
            raise ServiceClosed
        identity = self._identity
        for claim in claims:
            mine = identity is not None and claim.consumer_id == identity.consumer_id
            if identity is not None and mine and identity.alive:
                continue
            inherited = identity is not None and mine and identity.pid != os.getpid()
            if inherited or claim.consumer_id in self._inherited:
                msg = (
                    "This process was forked, and its parent made the claim. Nothing was changed. "
                    "Settle the message in the parent, or here by its token: "
                    "queue.held(message.token)."
                )
                raise ConsumerExpired(msg, messages)
            if mine or claim.consumer_id in self._former:
                msg = (
                    f"This consumer ({claim.consumer_id}) missed its heartbeat deadline of "
                    f"{self._settings.consumer_timeout} s, so its messages went to other "
                    "consumers. Nothing was changed. Consume again to continue with a new identity."
                )
                raise ConsumerExpired(msg, messages)

    def registration(self, consumer_id: str) -> tuple[str, str, int] | None:
        """The name, host and process of this consumer, if that is its present id; no query."""
        identity = self._identity
        if identity is None or identity.consumer_id != consumer_id:
            return None
        host = host_name()
        return (self._settings.consumer_name or host)[:200], host, identity.pid

    def is_own(self, consumer_id: str) -> bool:
        """Whether this is the id of a registration, also a former one, that this process made."""
        identity = self._identity
        present = None if identity is None or identity.pid != os.getpid() else identity.consumer_id
        return consumer_id == present or consumer_id in self._former

    def made(self, claim: Claim) -> bool:
        """Whether the consumer made the claim with its current identity."""
        return self._identity is not None and claim.consumer_id == self._identity.consumer_id

    @property
    def alive(self) -> bool:
        """Whether it is registered and its last heartbeat is still valid, without a query."""
        identity = self._identity
        return identity is not None and identity.looks_alive

    def keeps(self, consumer_id: str | None) -> bool:
        """Whether only the end of its lease takes away a claim with this id, as far as it knows."""
        return self.holds(consumer_id) or consumer_id in self._lasting

    def holds(self, consumer_id: str | None) -> bool:
        """Whether this is the id of its current registration, and it is alive; no query."""
        identity = self._identity
        return identity is not None and consumer_id == identity.consumer_id and identity.alive

    def heartbeat(self) -> float | None:
        """Renew the registration, then give back the messages of interrupted claims.

        It is called every third of the timeout, on its own connection. While others hold a lock,
        it tries again until it is called next.

        Returns:
            The seconds after which to call it again, because it failed; None: when it is due.
        """
        next_at = time.monotonic() + self.timeout_us / 3_000_000
        try:
            while (renewed := self._renew()) is None and time.monotonic() < next_at - BRIEF_SECONDS:
                pass
        except QueueError as error:
            if isinstance(error, DatabaseUnavailable):
                self.deaths.note_blocked()
            self._outage.began(error)
            # An outage at each regular heartbeat would be enough to expire a healthy consumer.
            return self._retries.pause()
        self._retries.reset()
        if renewed:
            self._recall()
        return None

    def tell(self) -> None:
        """Store now what this consumer handles; if that fails, its next heartbeat does it."""
        identity = self._identity
        if identity is None or not identity.looks_alive:
            return
        system, me, handles = self._system(), identity.consumer_id, self.handling.text()
        # So the next heartbeat tells what is true then, whatever is stored now.
        self._told = None
        try:
            with self._connections.giving_way():
                self._connections.run(lambda c: registrations.tell(c, system, me, handles))
        except QueueError as error:
            _log.info("What this consumer handles is stored later: %s", error)

    def recall_by(self, recall: Callable[[], object]) -> None:
        """Call this after each heartbeat from now on.

        Services that were not started have no reaper to give back messages of interrupted claims.
        """
        self._recalls[recall] = None

    def _recall(self) -> None:
        for recall in list(self._recalls):
            try:
                # A lock must not delay the next heartbeat.
                with self._connections.giving_way():
                    recall()
            except ServiceClosed:
                return
            except QueueError as error:
                _log.info("Messages of interrupted claims are given back later: %s", error)

    def _renew(self) -> bool | None:
        """Whether the consumer is alive; None if a lock keeps it from saying so.

        Raises:
            QueueError: the heartbeat failed for another reason.
        """
        identity = self._identity
        if identity is None or not identity.alive:
            return False
        began, deadline = elapsed_clock(), self._deadline()
        try:
            system, me = self._system(), identity.consumer_id
            expressions = self._connections.dialect.expressions
            # To wait in turns shows that it is a lock that delays it.
            told = me, self.handling.text()
            handles = None if told == self._told else told[1]
            with self._connections.giving_way():
                renew = Operation(
                    lambda c: registrations.renew(
                        c, system, expressions, me, self.timeout_us, handles=handles
                    ),
                    prompt=True,
                )
                renewed = self._connections.run(renew)
        except ServiceClosed:
            return False
        except Locked as error:
            self.deaths.note_blocked()
            # No reaper can declare this consumer dead before the lock is released, even if its
            # deadline has passed meanwhile. But of the time in which this process was suspended
            # the lock says nothing.
            now = elapsed_clock()
            if now - began < 2 * BRIEF_SECONDS or identity.alive:
                identity.renew(max(identity.deadline, now + self.deaths.grace))
            self._outage.began(error)
            return None
        self._outage.ended()
        if renewed:
            identity.renew(deadline)
            if handles is not None:
                self._told = told
        else:
            _log.warning(
                "Consumer %s missed its heartbeat deadline and is considered dead, so it "
                "can no longer settle its messages.",
                identity.consumer_id,
            )
            identity.deadline = float("-inf")
        return renewed

    def close(self) -> str | None:
        """Close the consumer for good; returns the id whose messages are to be released.

        None if it never registered, or if a parent process registered it before a fork.
        """
        self.keeper.stop()
        return self._given_up(for_good=True)

    def resign(self) -> str | None:
        """Give up the registration, as ``close`` does; the next claim registers anew."""
        return self._given_up(for_good=False)

    def _given_up(self, *, for_good: bool) -> str | None:
        self.isolation.forget(self)
        with self._lock:
            self._closed = self._closed or for_good
            identity, self._identity = self._identity, None
        if identity is None or identity.pid != os.getpid():
            return None
        self._former[identity.consumer_id] = identity.token_key
        return identity.consumer_id

    def _retire(self, identity: Identity) -> None:
        if identity.pid != os.getpid():
            _log.info("This process was forked; it registers as a new consumer.")
            self._inherited[identity.consumer_id] = identity.token_key
            return
        _log.warning("Consumer %s has expired; it registers again.", identity.consumer_id)
        self._former[identity.consumer_id] = identity.token_key

    def _register(self) -> Identity:
        system, expressions = self._system(), self._connections.dialect.expressions
        identity = Identity(self._deadline())
        host = host_name()
        consumer = {
            "consumer_id": identity.consumer_id,
            "name": (self._settings.consumer_name or host)[:200],
            "host": host,
            "pid": identity.pid,
            "token_key": identity.token_key,
        }
        self._connections.run(
            registrations.register.of(system, expressions, consumer, self.timeout_us)
        )
        return identity

    def register_for_good(self, name: str, host: str, known: str | None = None) -> str:
        """Register a consumer that never expires, unless it exists; returns its tokens' key.

        Args:
            name: its consumer id.
            host: what the list of consumers shows instead of a host.
            known: the key that its tokens had, which it keeps if it has to register again.

        Raises:
            ConsumerTaken: a consumer that can expire has this name.
            ServiceClosed: the service was stopped.
        """
        self.check_open()
        system, dialect = self._system(), self._connections.dialect
        consumer = {"consumer_id": name, "name": name, "host": host, "pid": 0}
        if known is not None:
            found = self._connections.run(lambda c: registrations.token_keys(c, system, [name]))
            if name in found:
                return found[name]
        registration = consumer | {"token_key": known or new_token_key()}
        key = self._connections.run(
            lambda c: registrations.register_for_good(c, system, dialect, registration)
        )
        assert key is not None  # noqa: S101 - it gave one
        return key

    @property
    def renewal_seconds(self) -> float:
        """How often a registration is renewed, or checked if it needs no heartbeat."""
        return self._settings.consumer_timeout_us / 3_000_000

    def check_open(self) -> None:
        """Raise ServiceClosed if the service was stopped."""
        if self._closed:
            raise ServiceClosed

    def _deadline(self) -> float:
        return elapsed_clock() + self.timeout_us / 1_000_000


class LastingHolder:
    """A consumer that never expires and has no process, so its claims end with their leases.

    Its processes know nothing of each other, so the stamps of its claims are random numbers.
    """

    def __init__(self, consumer: Consumer, name: str, host: str) -> None:
        self._consumer = consumer
        self._host = host
        self.consumer_id = name
        self.token_key: str | None = None
        self._check_at = float("-inf")

    def next_claim(self) -> Claim:
        """A unique stamp for the next claim; it registers the consumer if necessary."""
        self._consumer.check_open()
        if elapsed_clock() >= self._check_at:
            # A failover or a restore may have undone the registration. Reapers would give back
            # whatever this process claims.
            check_at = elapsed_clock() + self._consumer.renewal_seconds
            name, host = self.consumer_id, self._host
            self.token_key = self._consumer.register_for_good(name, host, self.token_key)
            self._check_at = check_at
        return Claim(self.consumer_id, secrets.randbits(_ROUND_BITS) + 1)

    def recall_by(self, recall: Callable[[], object]) -> None:
        """Call this after each heartbeat of this process, if it has one."""
        self._consumer.recall_by(recall)
