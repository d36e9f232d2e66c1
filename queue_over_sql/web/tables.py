"""The tables of the web package: tokens, the audit, and requests with an Idempotency-Key."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import re
import secrets
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    delete,
    func,
    select,
    update,
)

from queue_over_sql import inside
from queue_over_sql.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    NotPermitted,
    QueueError,
    shown,
)
from queue_over_sql.values.durations import (
    MICROSECOND,
    instant,
    instant_to_microseconds,
    optional_instant,
)
from queue_over_sql.values.limits import NAME_LENGTH, PREFIX_LENGTH
from queue_over_sql.values.texts import printable
from queue_over_sql.web.clock import DatabaseClock
from queue_over_sql.web.settings import Role, WebSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queue_over_sql import QueueService

_log = logging.getLogger(__name__)
T = TypeVar("T")

TOKEN_MARK: Final = "qos_"  # noqa: S105 - what is before a token is no token
"""The prefix of tokens, by which scanners of source code find committed ones."""

_MISSING: Final = "The tables queue_over_sql_web_tokens and queue_over_sql_web_audit are missing"
_NO_REQUESTS: Final = (
    "The table queue_over_sql_web_requests is missing, so this web server cannot keep an "
    "Idempotency-Key, and nothing was published. Run queue-over-sql token list once as the owner "
    "of the tables, then queue-over-sql roles install, and start this web server again."
)
_UNTIL_THEN: Final = "Until then no token works, and nothing is audited."
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,99}")
_PATTERN: Final = re.compile(r"[a-z0-9_*?]{1,60}")
_LAST_ADMIN: Final = (
    "The token of {name} is the last one of an admin. Without it nobody can manage tokens here, "
    "until somebody adds one with queue-over-sql token add. Nothing was removed yet."
)
_LONGEST_DETAIL: Final = 2_000
_WHO_LENGTH: Final = 200
# The lowest bits of an audit id tell rows of the same microsecond apart.
_RANDOM_BITS: Final = 10
_PRUNE_EVERY: Final = 100
_DAY: Final = timedelta(days=1)


@dataclasses.dataclass(frozen=True)
class WebTables:
    """The tables, in the schema of the shared ones."""

    tokens: Table
    audit: Table
    requests: Table


def web_tables(engine: inside.EngineFacts, schema: str | None) -> WebTables:
    """Define the tables."""
    metadata, name = MetaData(schema=schema), engine.exact_string
    tokens = Table(
        "queue_over_sql_web_tokens",
        metadata,
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("name", name(100), nullable=False),
        Column("role", name(20), nullable=False),
        # SHA-256 of the token in hexadecimal digits.
        Column("token_hash", name(64), nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("expires_at", BigInteger),
        # Patterns of the only queues that it is for, with commas between them; null: all queues.
        Column("queues", Text),
        # How often its sessions were ended; null: never.
        Column("session_version", Integer),
        PrimaryKeyConstraint("table_prefix", "name"),
        **engine.table_options,
    )
    audit = Table(
        "queue_over_sql_web_audit",
        metadata,
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        # Microseconds since the epoch and some random bits, so that the newest come last.
        Column("id", BigInteger, nullable=False, autoincrement=False),
        Column("at", BigInteger, nullable=False),
        Column("who", name(_WHO_LENGTH), nullable=False),
        Column("role", name(20), nullable=False),
        Column("what", name(60), nullable=False),
        Column("queue", name(NAME_LENGTH)),
        Column("message_count", BigInteger),
        Column("address", name(64)),
        Column("detail", Text),
        PrimaryKeyConstraint("table_prefix", "id"),
        Index("queue_over_sql_web_audit_ix", "table_prefix", "queue", "id"),
        **engine.table_options,
    )
    requests = Table(
        "queue_over_sql_web_requests",
        metadata,
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        # SHA-256 of the key with the path, and of the body, in hexadecimal digits.
        Column("request_hash", name(64), nullable=False),
        Column("body_hash", name(64), nullable=False),
        # The transaction that does the request adds the answer.
        Column("status", Integer),
        Column("answer", Text),
        Column("expires_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("table_prefix", "request_hash"),
        Index("queue_over_sql_web_requests_ix", "table_prefix", "expires_at"),
        **engine.table_options,
    )
    return WebTables(tokens, audit, requests)


@dataclasses.dataclass(frozen=True)
class StoredToken:
    """A stored token, without the token itself.

    Attributes:
        name: its owner.
        role: what it may do.
        token_hash: SHA-256 of it, in hexadecimal digits.
        created_at: when it was made.
        expires_at: when it expires; None: never.
        queues: patterns of the only queues that it is for; empty: all queues.
        session_version: how often its sessions were ended.
    """

    name: str
    role: Role
    token_hash: str = dataclasses.field(repr=False)
    created_at: datetime
    expires_at: datetime | None
    queues: tuple[str, ...] = ()
    session_version: int = 0

    def expired(self, now: datetime) -> bool:
        """Whether it has expired at a given time."""
        return self.expires_at is not None and self.expires_at <= now


@dataclasses.dataclass(frozen=True)
class AuditEntry:
    """A row of the audit.

    Attributes:
        id: increases with time; also the position of a page.
        at: when it was done.
        who, role, address: by whom and from where.
        what: the operation, such as ``remove``.
        queue: its queue, if any.
        count: how many messages it changed, if it is known.
        detail: details, as text.
    """

    id: int
    at: datetime
    who: str
    role: str
    what: str
    queue: str | None
    count: int | None
    address: str | None
    detail: str | None


class TokenTaken(ValueError):
    """A token of that name already exists."""


class LastAdminToken(ValueError):
    """It is the last token of an admin, and the caller did not say that it may go."""


def hash_of(token: str) -> str:
    """The stored hash of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class WebStore:
    """The operations on the tables of tokens and of the audit. Any thread may use it.

    Attributes:
        clock: the database's, which decides when tokens and sessions expire.
        problem: for people: what is missing if the tables do not exist and could not be created.
        no_requests: the same for the table of requests with an Idempotency-Key.
    """

    def __init__(self, service: QueueService, settings: WebSettings) -> None:
        self._service = service
        self._prefix = inside.settings(service).table_prefix
        self._settings = settings
        self._tables: WebTables | None = None
        self._written = 0
        self._last_id = 0
        self.clock = DatabaseClock(service)
        self.problem: str | None = None
        self.no_requests: str | None = None

    def prepare(self) -> bool:
        """Create the tables if they are missing; returns whether they exist.

        If nothing is missing it needs no right to create. ``problem`` says what failed.
        """
        try:
            inside.create_tables(self._service, [self.tables.tokens, self.tables.audit])
        except NotPermitted:
            self.problem = (
                f"{_MISSING}, and the login may not create them: run queue-over-sql token list "
                f"once as the owner of the tables. {_UNTIL_THEN}"
            )
        except DatabaseUnavailable:
            raise
        except QueueError as error:
            _log.warning("The tables of the web package cannot be created: %s", error)
            self.problem = f"{_MISSING}, and the database refuses to create them. {_UNTIL_THEN}"
        else:
            self.problem = None
            self._prepare_requests()
        return self.problem is None

    def _prepare_requests(self) -> None:
        # Apart from the others, because a database of an earlier release lacks only this table.
        try:
            inside.create_tables(self._service, [self.tables.requests])
        except DatabaseUnavailable:
            raise
        except QueueError as error:
            _log.info("The table of requests cannot be created: %s", error)
            self.no_requests = _NO_REQUESTS
        else:
            self.no_requests = None

    @property
    def tables(self) -> WebTables:
        """Their definitions for this database; the first use connects."""
        if self._tables is None:
            schema = inside.settings(self._service).schema
            self._tables = web_tables(inside.engine(self._service), schema)
        return self._tables

    def takes_writes(self) -> bool:
        """Whether the database accepts writes; a standby or a read-only file does not.

        It does not check the rights of the login; each operation reports those.
        """
        queues = inside.system(self._service).queues
        nothing = update(queues).where(queues.c.name == "").values(name=queues.c.name)
        try:
            self._run(lambda c: c.execute(nothing).close(), atomic=True)
        except NotPermitted:
            return True
        except DatabaseRefused:
            return False
        return True

    # -- tokens

    def add_token(
        self,
        name: str,
        role: Role,
        lasts: timedelta | None = None,
        queues: Sequence[str] = (),
    ) -> tuple[str, StoredToken]:
        """Create a token of 256 random bits.

        Args:
            name: its owner, a person or program: letters, digits and ``_.@+-``.
            role: what it may do.
            lasts: how long it is valid; None: forever.
            queues: the only queues that it is for: names, and patterns such as ``orders*``; empty:
                all queues, and what is not of one queue.

        Returns:
            The token, which is not stored, and its stored form.

        Raises:
            TokenTaken: there is one of that name.
            ValueError: the name or a pattern is not valid.
        """
        if not _NAME.fullmatch(name):
            msg = (
                "the name of a token must be 1 to 100 letters, digits and _ . @ + -, and begin "
                f"with a letter or digit, not {shown(name)}"
            )
            raise ValueError(msg)
        for pattern in queues:
            if not _PATTERN.fullmatch(pattern):
                msg = (
                    "a token is for queues by their names or by patterns such as orders*, not by "
                    f"{shown(pattern)}"
                )
                raise ValueError(msg)
        secret = TOKEN_MARK + secrets.token_urlsafe(32)
        table, engine = self.tables.tokens, inside.engine(self._service)

        def add(connection: Connection) -> StoredToken | None:
            c = table.c
            mine = (c.table_prefix == self._prefix, c.name == name)
            if connection.execute(select(c.name).where(*mine)).first() is not None:
                return None
            now = engine.read_clock(connection)
            until = None if lasts is None else now + lasts // MICROSECOND
            values = {
                "table_prefix": self._prefix,
                "name": name,
                "role": role.value,
                "token_hash": hash_of(secret),
                "created_at": now,
                "expires_at": until,
                "queues": ",".join(queues) or None,
            }
            if not inside.insert_unless_there(self._service, connection, table, values):
                return None
            times = instant(now), optional_instant(until)
            return StoredToken(name, role, hash_of(secret), *times, tuple(queues))

        added = self._run(add, atomic=False, repeat=False)
        if added is None:
            msg = f"a token named {name!r} already exists: remove it first, or use another name"
            raise TokenTaken(msg)
        return secret, added

    def tokens(self) -> list[StoredToken]:
        """All tokens by name; those that cannot be read are logged and left out."""
        c = self.tables.tokens.c
        times_and_more = (c.created_at, c.expires_at, c.queues, c.session_version)
        wanted = (c.name, c.role, c.token_hash, *times_and_more)
        listed = select(*wanted).where(c.table_prefix == self._prefix).order_by(c.name)
        rows = self._run(lambda connection: connection.execute(listed).all())
        found = []
        for row in rows:
            try:
                times = instant(row[3]), optional_instant(row[4])
                queues = tuple(str(row[5]).split(",")) if row[5] else ()
                more = queues, int(row[6] or 0)
                found.append(StoredToken(str(row[0]), Role(row[1]), str(row[2]), *times, *more))
            except (QueueError, ValueError) as error:
                _log.warning("A token is left out of the list: %s", error)
        return found

    def remove_token(self, name: str, *, last_admin: bool = False) -> bool:
        """Remove a token, and end all sessions that were made from it; False if there is none.

        Args:
            name: its owner.
            last_admin: whether it may be the last token of an admin.

        Raises:
            LastAdminToken: it is, and nothing was removed.
        """
        table, engine = self.tables.tokens, inside.engine(self._service)
        c = table.c
        mine = c.table_prefix == self._prefix
        gone = delete(table).where(mine, c.name == name)
        # Two of them that are removed at once wait for each other.
        admins = select(c.name, c.expires_at).where(mine, c.role == Role.ADMIN.value)
        locked = admins.order_by(c.name).with_for_update()

        def remove(connection: Connection) -> bool:
            if not last_admin:
                rows, now = connection.execute(locked).all(), engine.read_clock(connection)
                left = [row.name for row in rows if row.expires_at is None or row.expires_at > now]
                if left == [name]:
                    raise LastAdminToken(_LAST_ADMIN.format(name=name))
            return connection.execute(gone).rowcount > 0

        return self._run(remove, atomic=True, counts=True)

    def end_sessions(self, name: str) -> None:
        """End all sessions that were made from a token; others notice within a second."""
        table = self.tables.tokens
        c = table.c
        more = func.coalesce(c.session_version, 0) + 1
        ended = update(table).where(c.table_prefix == self._prefix, c.name == name)
        statement = ended.values(session_version=more)
        self._run(lambda connection: connection.execute(statement).close())

    # -- audit

    def write_audit(
        self,
        who: str,
        role: str,
        what: str,
        *,
        queue: str | None = None,
        count: int | None = None,
        address: str | None = None,
        detail: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Write a row of the audit.

        Args:
            who: the user who did it.
            role: the user's role.
            what: the operation.
            queue: its queue, if any.
            count: how many messages it changed, if it is known.
            address: the user's address.
            detail: details.
            connection: the transaction to use; by default one of its own, and then
                ``prune_sometimes`` follows.
        """
        table, engine = self.tables.audit, inside.engine(self._service)
        text = printable(detail)
        values = {
            "table_prefix": self._prefix,
            "who": (printable(who) or "")[:_WHO_LENGTH],
            "role": role,
            "what": what,
            "queue": (printable(queue) or "")[:NAME_LENGTH] or None,
            "message_count": count,
            "address": None if address is None else address[:64],
            "detail": None if text is None else text[:_LONGEST_DETAIL],
        }

        def write(connection: Connection) -> bool:
            now = engine.read_clock(connection)
            # Clocks may be coarse, but the rows of this process stay in order.
            made = now << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
            self._last_id = made = max(made, self._last_id + 1)
            row = {"id": made, "at": now}
            return inside.insert_unless_there(self._service, connection, table, values | row)

        self._written += 1
        if connection is None:
            while not self._run(write, repeat=False):
                continue
            self.prune_sometimes()
        elif not write(connection):
            # Another server wrote in the same microsecond, and the transaction may have failed.
            msg = "The audit could not be written, so nothing was changed. Try again."
            raise QueueError(msg)

    def audit(
        self,
        limit: int = 100,
        before: int | None = None,
        queue: str | None = None,
        *,
        who: str | None = None,
        what: str | None = None,
        day: date | None = None,
    ) -> list[AuditEntry]:
        """One page of the audit, the newest first.

        Args:
            limit: length of the page.
            before: the ``id`` of the last row of the previous page.
            queue: only rows about this queue.
            who: only what this user did.
            what: only this operation.
            day: only rows of this day, in UTC.
        """
        c = self.tables.audit.c
        wanted = (c.id, c.at, c.who, c.role, c.what, c.queue, c.message_count, c.address, c.detail)
        listed = select(*wanted).where(c.table_prefix == self._prefix)
        if before is not None:
            listed = listed.where(c.id < before)
        for column, text in ((c.queue, queue), (c.who, who), (c.what, what)):
            if text is not None:
                listed = listed.where(column == printable(text))
        if day is not None:
            first = instant_to_microseconds(datetime.combine(day, time(), UTC), "day")
            last = first + _DAY // MICROSECOND
            listed = listed.where(c.id >= first << _RANDOM_BITS, c.id < last << _RANDOM_BITS)
        page = listed.order_by(c.id.desc()).limit(limit)
        rows = self._run(lambda connection: connection.execute(page).all())
        return [AuditEntry(row[0], instant(row[1]), *row[2:]) for row in rows]

    def prune_sometimes(self) -> None:
        """Prune the audit after each hundred rows of this process. Never raises."""
        if self._written % _PRUNE_EVERY == 1:
            try:
                self.prune_audit()
            except QueueError as error:
                _log.warning("Old rows of the audit could not be removed: %s", error)

    def prune_audit(self) -> int:
        """Remove rows that are too old or too many; returns how many."""
        table, engine = self.tables.audit, inside.engine(self._service)
        c = table.c
        mine = c.table_prefix == self._prefix
        age = timedelta(days=self._settings.keep_audit_days) // MICROSECOND
        ids = select(c.id).where(mine).order_by(c.id.desc())
        oldest = ids.offset(self._settings.keep_audit_rows).limit(1)

        def prune(connection: Connection) -> int:
            last = engine.read_clock(connection) - age << _RANDOM_BITS
            beyond = connection.execute(oldest).scalar()
            last = max(last, beyond if beyond is not None else last)
            gone = delete(table).where(mine, c.id <= last)
            return connection.execute(gone).rowcount

        return self._run(prune, atomic=True)

    def _run(
        self,
        do: Callable[[Connection], T],
        *,
        atomic: bool = False,
        repeat: bool = True,
        counts: bool = False,
    ) -> T:
        return inside.run(self._service, do, atomic=atomic, repeat=repeat, counts=counts)
