"""Operations on the registrations of consumers; durations are microseconds."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, bindparam, delete, exists, insert, literal, select, update
from sqlalchemy.exc import DBAPIError

from queue_over_sql.consumers import handling
from queue_over_sql.consumers.handling import HandledQueue
from queue_over_sql.errors import ConsumerTaken, QueueError
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.operation import operation
from queue_over_sql.values.durations import NEVER, instant, optional_number, stored_number

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, FromClause, Insert

    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.sql.expressions import Expressions


SQL_CLIENTS: Final = "sql-api"
"""The consumer that all clients of the SQL API share."""
_DEAD: Final = 1


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer: a running process, or a durable one, which outlives its processes.

    Attributes:
        consumer_id: its identity, the stamp of its claims.
        name: a name to show to people.
        host, pid: where it runs.
        started_at, heartbeat_at: when it registered, and its last heartbeat.
        expires_at: when it is considered dead, unless it sends another heartbeat.
        durable: whether it is a durable consumer (a streaming query), which outlives its processes.
        handles: the queues that it handles; empty if its service only publishes, or asked for no
            messages for five minutes. It says so with its heartbeats.
        version: of its library; None if it has not said so.
        queue: the queue of a durable consumer. This and the next attributes are None for others.
        epoch: grows when a query takes it over, and fences the previous query.
        claimed_round, acked_round: the last round that it opened, and the last acknowledged one.
        owner: the query that has it, as ``host:pid``; None after a release.
        table_prefix: table prefix of its queues; None if it has not said so.
    """

    consumer_id: str
    name: str
    host: str
    pid: int
    started_at: datetime
    heartbeat_at: datetime
    expires_at: datetime
    durable: bool = False
    queue: str | None = None
    epoch: int | None = None
    claimed_round: int | None = None
    acked_round: int | None = None
    owner: str | None = None
    table_prefix: str | None = None
    handles: tuple[HandledQueue, ...] = ()
    version: str | None = None

    @property
    def permanent(self) -> bool:
        """Whether it has no heartbeats and never expires, as the consumer of the SQL API."""
        return not self.durable and self.never_expires

    @property
    def never_expires(self) -> bool:
        """Whether it stays registered without heartbeats."""
        return self.expires_at == instant(NEVER)


@operation(repeatable=False)
def register(
    connection: Connection,
    system: SystemTables,
    expressions: Expressions,
    consumer: dict[str, Any],
    timeout: int,
) -> None:
    """Write the row of a consumer that expires ``timeout`` from now.

    ``consumer`` has ``consumer_id``, ``name``, ``host``, ``pid`` and ``token_key``.
    """
    now = expressions.heartbeat_now()
    times = {"started_at": now, "heartbeat_at": now, "expires_at": now + timeout}
    connection.execute(insert(system.consumers).values({**consumer, **times}))


def register_for_good(
    connection: Connection,
    system: SystemTables,
    dialect: QueueDialect,
    consumer: Mapping[str, Any],
) -> str | None:
    """Write the row of a consumer that never expires, unless it exists.

    Returns:
        The key of its tokens, which all its processes share; None if ``consumer`` has none.

    Raises:
        ConsumerTaken: a consumer that can expire has this name.
    """
    try:
        connection.execute(_registration_for_good(system, dialect.expressions, consumer))
    except DBAPIError as error:
        # Another process registered it at the same time.
        if dialect.errors.classify(error) is not ErrorKind.DUPLICATE:
            raise
    c = system.consumers.c
    mine = c.consumer_id == consumer["consumer_id"]
    found = select(c.durable, c.expires_at).where(mine)
    durable, expires_at = connection.execute(found).one()
    if durable or expires_at != NEVER:
        name = consumer["consumer_id"]
        msg = (
            f"A consumer of another kind already has the name {name!r}. Drop it with: "
            f"queue-over-sql consumer drop {name!r}, and try again."
        )
        raise ConsumerTaken(msg)
    if "token_key" not in consumer:
        return None
    # An earlier release may have registered it.
    own = {"token_key": consumer["token_key"]}
    connection.execute(update(system.consumers).where(mine, c.token_key.is_(None)).values(own))
    key: str = connection.execute(select(c.token_key).where(mine)).scalar_one()
    return key


def token_keys(
    connection: Connection, system: SystemTables, consumer_ids: Sequence[str]
) -> dict[str, str]:
    """The keys of tokens of those of these consumers that are registered and have one."""
    c = system.consumers.c
    found = select(c.consumer_id, c.token_key).where(c.consumer_id.in_(consumer_ids))
    return {row[0]: row[1] for row in connection.execute(found) if row[1] is not None}


def registration_for_good(
    connection: Connection,
    system: SystemTables,
    expressions: Expressions,
    consumer: Mapping[str, Any],
) -> str:
    """The statements of ``register_for_good`` as text."""
    statement = _registration_for_good(system, expressions, consumer)
    compiled = statement.compile(
        dialect=connection.dialect,
        compile_kwargs={"literal_binds": True, "render_postcompile": True},
    )
    return str(compiled)


def _registration_for_good(
    system: SystemTables, expressions: Expressions, consumer: Mapping[str, Any]
) -> Insert:
    consumers, now = system.consumers, expressions.heartbeat_now()
    times = {"started_at": now, "heartbeat_at": now, "expires_at": literal(NEVER, BigInteger())}
    given = {name: literal(value) for name, value in consumer.items()}
    values: dict[str, ColumnElement[Any]] = {**given, **times}
    there = exists().where(consumers.c.consumer_id == consumer["consumer_id"])
    return insert(consumers).from_select(list(values), select(*values.values()).where(~there))


def renew(
    connection: Connection,
    system: SystemTables,
    expressions: Expressions,
    consumer_id: str,
    timeout: int,
    *,
    handles: str | None = None,
) -> bool:
    """Renew a heartbeat, even an overdue one; False if the consumer was declared dead.

    ``handles``: what it handles from now on; None: as before.
    """
    consumers, now = system.consumers, expressions.heartbeat_now()
    statement = (
        update(consumers)
        .where(consumers.c.consumer_id == bindparam("p_consumer"), lives(consumers))
        .values(heartbeat_at=now, expires_at=now + timeout)
    )
    if handles is not None:
        statement = statement.values(handles=handles)
    return connection.execute(statement, {"p_consumer": consumer_id}).rowcount > 0


def tell(connection: Connection, system: SystemTables, consumer_id: str, handles: str) -> None:
    """Store what a consumer handles from now on."""
    mine = system.consumers.c.consumer_id == consumer_id
    connection.execute(update(system.consumers).where(mine).values(handles=handles))


def remove(connection: Connection, system: SystemTables, consumer_id: str) -> None:
    """Remove the row of a consumer, and what belongs to it."""
    consumers, rounds = system.consumers, system.rounds
    connection.execute(delete(consumers).where(consumers.c.consumer_id == consumer_id))
    connection.execute(delete(rounds).where(rounds.c.consumer_id == consumer_id))
    connection.execute(delete(system.kinds).where(system.kinds.c.consumer_id == consumer_id))


def set_back(
    connection: Connection, system: SystemTables, expressions: Expressions, step: int
) -> None:
    """Set heartbeats that are ahead of the database's clock back, with the clock.

    Living consumers send another one soon. The dead would not expire until the clock gets there.
    Those that are declared dead keep what ``declare_dead`` wrote.
    """
    c = system.consumers.c
    ahead = (
        c.heartbeat_at > expressions.heartbeat_now(),
        c.expires_at != literal(NEVER, BigInteger()),
        lives(system.consumers),
    )
    earlier = literal(step, BigInteger())
    connection.execute(
        update(system.consumers)
        .where(*ahead)
        .values(heartbeat_at=c.heartbeat_at - earlier, expires_at=c.expires_at - earlier)
    )


@operation(atomic=True)
def remove_dead(connection: Connection, system: SystemTables, consumer_id: str) -> bool:
    """Remove a consumer that is declared dead, in a transaction; a durable one may be back."""
    dead = (system.consumers.c.consumer_id == consumer_id, ~lives(system.consumers))
    if not connection.execute(delete(system.consumers).where(*dead)).rowcount:
        return False
    remove(connection, system, consumer_id)
    return True


def alive(
    connection: Connection, system: SystemTables, expressions: Expressions, consumer_id: str
) -> bool:
    """Whether a consumer is registered and has not expired."""
    columns = system.consumers.c
    there = select(columns.consumer_id).where(
        columns.consumer_id == consumer_id, columns.expires_at > expressions.heartbeat_now()
    )
    return connection.execute(there).first() is not None


def lives(consumers: FromClause) -> ColumnElement[bool]:
    """The condition for consumers that are not declared dead, even if they are overdue."""
    return consumers.c.expires_at > literal(_DEAD, BigInteger())


def overdue(
    connection: Connection, system: SystemTables, expressions: Expressions
) -> dict[str, bool]:
    """The ids of consumers whose heartbeat is overdue, and whether they are declared dead."""
    consumers = system.consumers
    statement = select(consumers.c.consumer_id, lives(consumers)).where(
        consumers.c.expires_at <= expressions.heartbeat_now()
    )
    return {row[0]: not row[1] for row in connection.execute(statement)}


@operation(atomic=True)
def declare_dead(
    connection: Connection,
    system: SystemTables,
    expressions: Expressions,
    consumer_ids: Sequence[str],
    *,
    held: Mapping[str, int] | None = None,
    spared: Container[str] = (),
) -> set[str]:
    """Declare those of these consumers dead, for good, whose heartbeat is still overdue.

    It looks again under the locks of their rows. It leaves out those that others have locked, if
    the engine can skip them, because the same lock may delay their heartbeats. ``held`` says how
    many messages each of them holds; ``others_of`` reads it.

    Returns:
        The ids of those that are overdue and that nobody has locked. They are dead, except those
        that are ``spared``.
    """
    c = system.consumers.c
    late = (c.consumer_id.in_(consumer_ids), c.expires_at <= expressions.heartbeat_now())
    found = (
        select(c.consumer_id)
        .where(*late)
        .with_for_update(skip_locked=expressions.features.skip_locked)
    )
    free = {row[0] for row in connection.execute(found)}
    groups: dict[int, list[str]] = {}
    for each in sorted(free):
        if each not in spared:
            groups.setdefault((held or {}).get(each, 0), []).append(each)
    for count, of_count in groups.items():
        mine = (c.consumer_id.in_(of_count), c.expires_at <= expressions.heartbeat_now())
        dead = _DEAD - count
        connection.execute(update(system.consumers).where(*mine).values(expires_at=dead))
    return free


def others_of(expires_at: int) -> int:
    """How many messages besides one a consumer held when it was declared dead, in all queues.

    Below zero if that is unknown. ``declare_dead`` has written it into ``expires_at``.
    """
    return _DEAD - expires_at - 1


_STORED: Final = tuple(
    field.name for field in dataclasses.fields(ConsumerInfo) if field.name != "version"
)
_HANDLES: Final = _STORED.index("handles")


def registered(connection: Connection, system: SystemTables) -> list[ConsumerInfo | QueueError]:
    """All registered consumers, the oldest first, and the errors of rows that cannot be read."""
    c, kinds = system.consumers.c, system.kinds
    ordered = select(*info_columns(system)).order_by(c.started_at, c.consumer_id)
    rows: Sequence[Any] = connection.execute(ordered).all()
    declared: Sequence[Any] = ()
    if any(_says_too_little(row) for row in rows):
        columns = (kinds.c.consumer_id, kinds.c.table_prefix, kinds.c.queue, kinds.c.kind)
        declared = connection.execute(select(*columns)).all()
    return completed(rows, declared)


def completed(rows: Sequence[Any], declared: Sequence[Any]) -> list[ConsumerInfo | QueueError]:
    """Consumers by rows of ``info_columns``, with the kinds of those that said too little.

    ``declared``: ids of consumers with table prefix, queue and kind.
    """
    known: dict[str, list[tuple[str, str]]] = {}
    prefixes: dict[str, str] = {}
    for consumer_id, prefix, queue, kind in declared:
        prefixes[consumer_id] = prefix
        known.setdefault(consumer_id, []).append((queue, kind))
    found: list[ConsumerInfo | QueueError] = []
    for row in rows:
        one = info(row)
        if isinstance(one, ConsumerInfo) and one.consumer_id in known and _says_too_little(row):
            handles = handling.claimed_from(known[one.consumer_id])
            prefix = prefixes[one.consumer_id]
            one = dataclasses.replace(one, table_prefix=prefix, handles=handles)
        found.append(one)
    return found


def _says_too_little(row: Sequence[Any]) -> bool:
    # A consumer of an earlier release says nothing, and a new one says it a bit later.
    said = handling.read(row[_HANDLES])
    return said is None or not said.whole


def info_columns(system: SystemTables) -> list[ColumnElement[Any]]:
    """The columns of a select of consumers, for ``info``."""
    return [system.consumers.c[name] for name in _STORED]


def info(row: Sequence[Any]) -> ConsumerInfo | QueueError:
    """What is known about a consumer; an error if its row cannot be read."""
    given = dict(zip(_STORED, row, strict=True))
    said = handling.read(given.pop("handles"))
    try:
        for name in ("started_at", "heartbeat_at", "expires_at"):
            given[name] = instant(stored_number("an instant of a consumer", given[name]))
        for name in ("epoch", "claimed_round", "acked_round"):
            given[name] = optional_number("a number of a durable consumer", given[name])
    except QueueError as error:
        return error
    durable = bool(given["durable"])
    if durable and given["owner"] is not None and given["queue"] is not None:
        given["handles"] = (HandledQueue(given["queue"]),)
    elif said is not None and not durable:
        given |= {"handles": said.handles, "version": said.version}
        given["table_prefix"] = said.table_prefix
    return ConsumerInfo(**given | {"durable": durable})


def handlers_of(
    consumers: Sequence[ConsumerInfo], table_prefix: str, queue: str
) -> list[tuple[ConsumerInfo, HandledQueue]]:
    """Those of these consumers that handle a queue, and what they say of it."""
    return [
        (each, handled)
        for each in consumers
        if each.table_prefix == table_prefix and not each.permanent
        for handled in each.handles
        if handled.queue == queue
    ]
