"""A long queue that has lived, and what is done to queues all the time.

Its head is claimed, before that lie the dead rows of what is done, others are due later, and some
are of a less urgent level: a plan on a fresh table proves nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import delete, insert, update

from queue_over_sql import Publication, Queue, QueueService
from queue_over_sql.archive.operations import last_to_prune, prune_archive
from queue_over_sql.claiming import statements as claim
from queue_over_sql.claiming.operations import anything_to_claim, exchange, unclaim_round
from queue_over_sql.consumers import registrations
from queue_over_sql.message import claim_of
from queue_over_sql.queue import core_of
from queue_over_sql.request_reply import store as replies
from queue_over_sql.service import parts_of
from queue_over_sql.sql.operation import Operation
from queue_over_sql.statements.parameters import id_values
from tests.dialects.plans.explain import Plan, analyze, analyze_once, plans
from tests.dialects.traffic import Traffic, listening

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from queue_over_sql import Message
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.testing.plugin import TestDatabase
    from queue_over_sql.values.states import OnConflict

LESS_URGENT, DELAYED, CLAIMED, DONE, CONSUMERS = 5_000, 5_000, 2_000, 3_000, 2_000


def length(engine: str) -> int:
    """How many messages are in the queue: fewer on the engines that take minutes for them."""
    return 30_000 if engine in {"h2", "mysql"} else 100_000


_DAY = 86_400.0

Act = Callable[[], object]
Archiving = Literal["none", "failed", "all"]


@dataclasses.dataclass(frozen=True)
class OldQueue:
    """The queue, its service, and what both send."""

    engine: str
    service: QueueService
    queue: Queue
    traffic: Traffic
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def plans(self, act: Act) -> list[Plan]:
        """The plans of all that an act sends."""
        sent = self.traffic.of(act)
        with self.service._parts.connections.engine.connect() as connection:
            return list(plans(connection, self.engine, sent))

    def run(self, act: Callable[[Connection], object]) -> object:
        """Run an operation in a transaction."""
        return core_of(self.queue).context.run(Operation(act, atomic=True))

    @property
    def queue_dialect(self) -> QueueDialect:
        """The differences of this server."""
        return core_of(self.queue).context.dialect

    def archiving(self, archive: Archiving) -> None:
        """Let the queue keep what is finished, or not."""
        self.service.create_queue("jobs", archive=archive)
        self.queue.refresh()


@contextlib.contextmanager
def old_queue(database: TestDatabase) -> Iterator[OldQueue]:
    """Make the queue; it takes a few seconds."""
    # No job of the background comes between the acts.
    timeout: dict[str, Any] = {"consumer_timeout": 3600, "reaper_interval": 3600}
    with listening(database.engine) as traffic, contextlib.ExitStack() as stack:
        service = QueueService(database.url, **timeout)
        stack.callback(service.stop)
        queue = service.create_queue("jobs", lease=_DAY, archive="all", priorities=2)
        queue.load(_life(length(database.engine)))
        for _ in range(DONE // 500):
            queue.ack(queue.consume(500))
        for _ in range(CLAIMED // 500):
            queue.consume(500)
        with service._parts.connections.engine.connect() as connection:
            _register_many(connection, service)
            tables = ("queue_jobs", "queue_jobs_archive", "queue_over_sql_consumers")
            analyze_once(connection, database.engine, *tables)
        yield OldQueue(database.engine, service, queue, traffic)


def _life(messages: int) -> Iterator[Publication]:
    due = DONE + messages - DELAYED
    for number in range(due):
        yield Publication(number, priority=0 if number < due - LESS_URGENT else 1)
    for number in range(DELAYED):
        yield Publication(number, delay=_DAY, key=f"later {number}")


def _register_many(connection: Connection, service: QueueService) -> None:
    system, now = service._parts.system(), int(time.time() * 1e6)
    times = {"started_at": now, "heartbeat_at": now, "expires_at": now + int(_DAY * 1e6)}
    others = [
        {"consumer_id": str(uuid.UUID(int=number)), "name": "other", "host": "there", "pid": number}
        for number in range(CONSUMERS)
    ]
    connection.execute(insert(system.consumers), [other | times for other in others])
    connection.commit()


Prepare = Callable[[OldQueue], Act]


def _claim(old: OldQueue, count: int, level: int = 0, *, fully: bool) -> Act:
    """A claim from the beginning, or from the mark of the claim before."""
    claimer = core_of(old.queue).claimer
    # Other acts have edited messages, and claims that do not know of that are refused.
    claimer._was_edited()
    edits = claimer._known_edits()
    [last] = old.queue.consume(1)
    assert last.available_at is not None
    low = 0 if fully else int(last.available_at.timestamp() * 1e6)
    mark = claimer._mark(level)
    return lambda: claimer._look(mark, claimer._request(level, count, None, low, edits=edits))


def _look(old: OldQueue) -> Act:
    request = core_of(old.queue).claimer._request(0, 1, None, 0)
    return lambda: old.run(lambda c: anything_to_claim(c, core_of(old.queue).context.sql, request))


def _settle(
    old: OldQueue, count: int, archive: Archiving, verb: Callable[[Queue, list[Message]], object]
) -> Act:
    old.archiving(archive)
    messages = old.queue.consume(count)
    assert count == len(messages)
    return lambda: verb(old.queue, messages)


def _take(old: OldQueue, count: int) -> Act:
    def take() -> None:
        with old.service._parts.connections.transaction() as connection:
            assert old.queue.take(count, connection=connection)

    return take


def _publish(old: OldQueue, on_conflict: OnConflict) -> Act:
    key = f"later {next(old.numbers)}"
    return lambda: old.queue.publish("new", key=key, delay=_DAY, on_conflict=on_conflict)


def _publish_keys(old: OldQueue, on_conflict: OnConflict) -> Act:
    keys = [f"later {next(old.numbers)}" for _ in range(100)]
    items = [Publication("new", key=key, delay=_DAY) for key in keys]
    return lambda: old.queue.publish_many(items, on_conflict=on_conflict)


def _exchange_at_once(old: OldQueue, count: int, *, keep: bool) -> Act:
    """Ack and claim in one statement, which serves queues of one level alone."""
    queue = old.queue
    messages = queue.consume(count)
    [settlement] = core_of(queue).settlements.grouped(messages)
    request = core_of(queue).claimer._request(0, count, None, 0)
    sql = core_of(queue).context.sql
    return lambda: old.run(lambda c: exchange(c, sql, settlement, request, keep=keep))


def _unclaim(old: OldQueue) -> Act:
    [message] = old.queue.consume(1)
    stamp = claim_of(message)
    assert stamp is not None
    return lambda: old.run(lambda c: unclaim_round(c, core_of(old.queue).context.sql, stamp))


def _stamped(old: OldQueue) -> Act:
    [message] = old.queue.consume(1)
    values = {"p_consumer": message.consumer_id, "p_round": message.consumer_round}
    sql = core_of(old.queue).context.sql
    return lambda: old.run(lambda c: sql.get(claim.stamped).run(c, values).all())


def _hold(old: OldQueue, count: int) -> Act:
    tokens = [message.token for message in old.queue.consume(count)]
    return lambda: old.queue.held_many(tokens)


def _reply(old: OldQueue) -> Act:
    sql = core_of(old.queue).context.sql
    return lambda: old.run(
        lambda c: sql.get(replies.reply_by_key).run(c, {"p_key": "later 0"}).all()
    )


def _withdraw(old: OldQueue) -> Act:
    values, sql = id_values([old.queue.publish("x").id]), core_of(old.queue).context.sql
    return lambda: old.run(lambda c: sql.get(replies.unbegun).run(c, values))


def _prune(old: OldQueue, *, ttl: int | None, keep: int | None) -> Act:
    sql = core_of(old.queue).context.sql

    def prune(connection: Connection) -> None:
        up_to = last_to_prune(connection, sql, "done", ttl=ttl, keep=keep)
        assert up_to is not None
        assert prune_archive(connection, sql, "done", (0, up_to), 10)[0]

    return lambda: old.run(prune)


def _prune_alone(old: OldQueue) -> Act:
    """Nothing else is in the archive, so that its whole index holds what goes."""
    archive = core_of(old.queue).context.tables.archive
    with old.service._parts.connections.engine.connect() as connection:
        connection.execute(delete(archive).where(archive.c.outcome != "done"))
        analyze(connection, old.engine, archive.name)
    return _prune(old, ttl=1, keep=None)


def _heartbeat(old: OldQueue) -> Act:
    dialect, system = old.service._parts.connections.dialect, old.service._parts.system()
    me = old.service.consumer_id
    assert me is not None
    return lambda: old.run(
        lambda c: registrations.renew(c, system, dialect.expressions, me, 3_600_000_000)
    )


def _declare_dead(old: OldQueue) -> Act:
    dialect, system = old.service._parts.connections.dialect, old.service._parts.system()
    other = str(uuid.UUID(int=next(old.numbers)))
    overdue = update(system.consumers).where(system.consumers.c.consumer_id == other)
    old.run(lambda c: c.execute(overdue.values(expires_at=2)))
    return lambda: old.run(
        lambda c: registrations.declare_dead(c, system, dialect.expressions, [other])
    )


def _forget(old: OldQueue) -> Act:
    system, other = old.service._parts.system(), str(uuid.UUID(int=next(old.numbers)))
    return lambda: old.run(lambda c: registrations.remove(c, system, other))


def _why(old: OldQueue, level: int) -> Act:
    of_level = old.queue.table.c.priority == level
    [message] = old.queue.messages(status="ready", where=of_level).list(limit=1)
    return lambda: old.queue.why(message.id)


def _edit_one(old: OldQueue) -> Act:
    chosen = old.queue.messages(key=f"later {next(old.numbers)}")
    return lambda: chosen.reschedule(delay=2 * _DAY)


def _edit_status(old: OldQueue) -> Act:
    chosen = old.queue.messages(status="held")
    return lambda: chosen.reschedule(delay=_DAY)


def _page(old: OldQueue) -> Act:
    [message] = old.queue.messages(status="ready").list(limit=1)
    return lambda: old.queue.messages().list(limit=100, after=message.id)


def _remove_batches(old: OldQueue) -> Act:
    chosen = old.queue.messages(status="delayed", kind="none such")
    return lambda: chosen.remove(progress=lambda _: None)


def verbs(count: int) -> dict[str, Prepare]:
    """What is done with ``count`` claimed messages."""

    def settle(archive: Archiving, verb: Callable[[Queue, list[Message]], object]) -> Prepare:
        return lambda old: _settle(old, count, archive, verb)

    def exchange(queue: Queue, messages: list[Message]) -> list[Message]:
        return queue.exchange(messages, count)

    return {
        f"ack {count}": settle("failed", Queue.ack),
        f"ack and archive {count}": settle("all", Queue.ack),
        f"exchange {count}": settle("failed", exchange),
        f"exchange and archive {count}": settle("all", exchange),
        f"at once exchange {count}": lambda old: _exchange_at_once(old, count, keep=False),
        f"at once exchange and archive {count}": lambda old: _exchange_at_once(
            old, count, keep=True
        ),
        f"nack {count}": settle("all", lambda queue, m: queue.nack(m, delay=_DAY)),
        f"release {count}": settle("all", Queue.release),
        f"reject {count}": settle("all", lambda queue, m: queue.reject(m, "bad")),
        f"extend {count}": settle("all", Queue.extend),
    }


def _recover(old: OldQueue, name: str) -> Act:
    steps = getattr(core_of(old.queue).recovery, name)
    return lambda: list(steps())


ACTS: Final[Mapping[str, Prepare]] = {
    "claim 1 from the mark": lambda old: _claim(old, 1, fully=False),
    "claim 1, full look": lambda old: _claim(old, 1, fully=True),
    "claim 100 from the mark": lambda old: _claim(old, 100, fully=False),
    "claim 100, full look": lambda old: _claim(old, 100, fully=True),
    "claim 100 of a later level": lambda old: _claim(old, 100, 1, fully=True),
    "look for anything": _look,
    "read what a claim stamped": _stamped,
    "hold 1 by its token": lambda old: _hold(old, 1),
    "hold 100 by their tokens": lambda old: _hold(old, 100),
    "take 1": lambda old: _take(old, 1),
    "take 100": lambda old: _take(old, 100),
    **verbs(1),
    **verbs(100),
    "give a claim back": _unclaim,
    "give back all": lambda old: lambda: core_of(old.queue).release_all(str(uuid.UUID(int=0))),
    "find expired leases": lambda old: _recover(old, "expired_leases"),
    "find claims of the dead": lambda old: _recover(old, "orphaned_claims"),
    "publish, key skipped": lambda old: _publish(old, "skip"),
    "publish, key replaced": lambda old: _publish(old, "replace"),
    "publish 100, keys skipped": lambda old: _publish_keys(old, "skip"),
    "find a reply": _reply,
    "withdraw a request": _withdraw,
    "prune by age": lambda old: _prune(old, ttl=1, keep=None),
    "prune by number": lambda old: _prune(old, ttl=None, keep=100),
    "prune where all may go": _prune_alone,
    "heartbeat": _heartbeat,
    "find dead consumers": lambda old: parts_of(old.service).consumer.deaths.declare,
    "declare a consumer dead": _declare_dead,
    "forget a consumer": _forget,
    "page by id": _page,
    "why a message waits": lambda old: _why(old, 0),
    "why one of a later level waits": lambda old: _why(old, 1),
    "delete one": lambda old: lambda: old.queue.delete(0),
    "edit one by its key": _edit_one,
    "edit by status": _edit_status,
    "remove in batches": _remove_batches,
    "statistics": lambda old: old.queue.stats,
}
"""What is done to queues all the time: each prepares itself and returns what is to be explained."""
