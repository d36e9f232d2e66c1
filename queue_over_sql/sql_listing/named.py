"""The operations of a queue by name, each with what it does on the database."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from queue_over_sql import attempts
from queue_over_sql.archive import results
from queue_over_sql.archive.operations import last_to_prune, prune_archive
from queue_over_sql.archive.requeue import requeue
from queue_over_sql.claiming import operations as claiming
from queue_over_sql.consumers import registrations
from queue_over_sql.durable import round_store
from queue_over_sql.durable import staged_write_store as staged_writes
from queue_over_sql.groups import blocking, repair
from queue_over_sql.groups import operations as groups_operations
from queue_over_sql.groups.fair import claims_of
from queue_over_sql.groups.groups import change_group
from queue_over_sql.groups.listing import read_groups
from queue_over_sql.groups.strategy import GroupRequest, GroupRules, Seen
from queue_over_sql.groups.taking import Picking
from queue_over_sql.limits.slots import count_others, has_room, occupy_taken, reserve_for_caller
from queue_over_sql.limits.tokens import read as look_for_token
from queue_over_sql.message import Claim
from queue_over_sql.publishing import deduplication, statements
from queue_over_sql.publishing import operations as publishing
from queue_over_sql.publishing.new_messages import CONTENT, NewMessage
from queue_over_sql.queue import core_of
from queue_over_sql.queues import purge, registry, stats
from queue_over_sql.recovery import dead_claims, expired_messages
from queue_over_sql.recovery.staged_writes import WHOLE, orphaned_stages, prune_commits
from queue_over_sql.recovery.unknown_kinds import dead_letter_unknown
from queue_over_sql.request_reply import store as replies
from queue_over_sql.schedules import store as schedules
from queue_over_sql.selection import operations as selection
from queue_over_sql.selection import why_statements as why
from queue_over_sql.settling import operations as settling
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.sql_listing.formatting import formatted
from queue_over_sql.sql_listing.rehearsal import Rehearsal, texts
from queue_over_sql.statements.operations import change_by_ids
from queue_over_sql.statements.requests import ClaimRequest, Disposition, Settlement, wanted
from queue_over_sql.topics import store as topics
from queue_over_sql.values.states import Outcome, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from queue_over_sql.queue import Queue
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.schema.system_tables import SystemTables
    from queue_over_sql.sql.dialect import QueueDialect

_STAMP: Final = Claim("consumer", 1)
_BATCH: Final = 2
_SECOND: Final = 1_000_000
_LAST: Final = 2**62


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """A statement that an operation sends.

    Attributes:
        operation: the operation, such as ``claim``.
        place: its place among the statements of the operation, from 1 on.
        count: how many statements the operation sends.
        text: the statement as it is sent, with parameters as ``:name``.
        same_as: the name of the same statement in an operation before this one, or None.
    """

    operation: str
    place: int
    count: int
    text: str
    same_as: str | None = None

    @property
    def name(self) -> str:
        """The operation, and its place where there are several."""
        return self.operation if self.count == 1 else f"{self.operation}, {self.place}"

    @property
    def title(self) -> str:
        """The operation, and the place among its statements, as a comment."""
        of = "" if self.count == 1 else f" ({self.place} of {self.count})"
        return f"-- {self.operation}{of}"

    def __str__(self) -> str:
        return f"{self.title}\n{formatted(self.text)};"


Statements = Callable[[Any], StatementCache]
"""Makes the compiled statements of some tables."""


class Stage:
    """What an operation needs: a connection, which may be a real one, and tables."""

    def __init__(
        self, queue: Queue, rows: int, connection: Connection, statements: Statements
    ) -> None:
        context = core_of(queue).context
        self.connection, self.statements, self.rows = connection, statements, rows
        self.tables: QueueTables = context.tables
        self.dialect: QueueDialect = context.dialect
        self.system: SystemTables = self.tables.system
        self.sql = statements(self.tables)
        self.settings = context.known_settings

    @property
    def rules(self) -> GroupRules:
        """The rules of its groups, of which none has a rate of its own."""
        return GroupRules.of(self.settings, own_rates=False)

    def run(self, do: Callable[..., object], *arguments: Any, **options: Any) -> None:
        """Run an operation on the queue's tables."""
        do(self.connection, self.sql, *arguments, **options)

    def on_system(self, do: Callable[..., object], *arguments: Any, **options: Any) -> None:
        """Run an operation on the shared tables."""
        do(self.connection, self.system, *arguments, **options)

    def on_scope(self, do: Callable[..., object], *arguments: Any, **options: Any) -> None:
        """Run an operation on the schedules."""
        scope = schedules.SchedulesOfPrefix(self.system, self.dialect, self.tables.prefix)
        do(self.connection, scope, *arguments, **options)

    def settlement(self, **more: Any) -> Settlement:
        """The settlement of as many messages as there are rows."""
        return Settlement(range(1, self.rows + 1), _STAMP, **more)

    def message(self, **more: Any) -> NewMessage:
        """A message with a payload."""
        given = {**CONTENT, "payload": "1", **dict.fromkeys(self.tables.own_columns)}
        return NewMessage(**({"key": None, "delay": 0, "at": None, "content": given} | more))


Step = Callable[[Stage], object]


def _publish(**more: Any) -> Step:
    return lambda stage: stage.run(publishing.publish, stage.message(**more), "raise")


def _publish_many(*names: str | None) -> Step:
    return lambda stage: stage.run(
        publishing.publish_many, [stage.message(key=name) for name in names], "raise"
    )


def _replace(stage: Stage) -> None:
    stage.sql.get(statements.live_by_key).run(stage.connection)
    if stage.tables.frees_claimed_keys:
        stage.sql.get(statements.release_key).run(stage.connection)
        stage.sql.get(statements.still_waiting).run(stage.connection)
    stage.sql.get(statements.replace).run(stage.connection)


def _request(stage: Stage) -> ClaimRequest:
    return ClaimRequest(
        consumer_id=_STAMP.consumer_id,
        consumer_round=_STAMP.consumer_round,
        count=stage.rows,
        priority=0,
        low=0,
        lease_us=None,
        queue_lease_us=_SECOND,
        edits=0,
        guarded=True,
    )


def _claim(stage: Stage) -> None:
    if stage.tables.grouped:
        stage.run(claiming.claim_of_groups_within, _group_request(stage))
    else:
        stage.run(claiming.claim_within, _request(stage))


def _group_request(stage: Stage) -> GroupRequest:
    return GroupRequest(_request(stage), stage.rules, stage.rows)


def _claim_first(stage: Stage) -> None:
    """Where the window shows the first messages of groups alone, as a claim found it before."""
    claims = claims_of(stage.sql, stage.rules)
    if claims.has_heads and stage.rules.ordered:
        stage.run(claims.claim_heads, _group_request(stage)._replace(heads=True))


def _exchange_first(stage: Stage) -> None:
    claims, request = claims_of(stage.sql, stage.rules), _group_request(stage)
    if claims.exchanges_heads and stage.rules.ordered:
        acked = [stage.settlement()]
        stage.run(claims.exchange_heads, acked, request._replace(heads=True), keep=False)


def _park(stage: Stage) -> None:
    groups = [f"x{number}" for number in range(1, stage.rows + 1)]
    met = [Seen(number, group, 1) for number, group in enumerate(groups, 1)]
    claims = claims_of(stage.sql, stage.rules)
    stage.run(groups_operations.park, claims, _group_request(stage), met)


def _claim_known_kinds(stage: Stage) -> None:
    subject = dataclasses.replace(stage.tables, known_kinds=("kind",))
    knowing = copy.copy(stage)
    knowing.sql, knowing.tables = stage.statements(subject), subject
    _claim(knowing)


def _look(stage: Stage) -> None:
    if stage.dialect.features.look_first:
        stage.run(claiming.anything_to_claim, _request(stage))


def _take(*, keep: bool) -> Step:
    def do(stage: Stage) -> None:
        slots = []
        if stage.tables.limited:
            slots = reserve_for_caller(stage.connection, stage.sql, stage.rows, None)
        stage.run(
            claiming.take,
            wanted(0, stage.rows),
            decode=lambda _: ([], {}),
            done=Disposition(keep),
            where=None,
            refused={},
            ended={},
            careful=keep,
            picking=partial(_picked, stage) if stage.tables.grouped else None,
        )
        if slots:
            occupy_taken(stage.connection, stage.sql, slots, range(1, stage.rows + 1))

    return do


def _picked(stage: Stage) -> Sequence[Sequence[Any]]:
    picking = Picking(
        stage.connection,
        stage.sql,
        stage.rules,
        None,
        elsewhere=lambda read: read(stage.connection),
        create_rows=lambda _: None,
        park=None,
    )
    return picking.pick(0, stage.rows, 0)


def _finish(*, keep: bool) -> Step:
    def do(stage: Stage) -> None:
        if stage.tables.grouped:
            # First all behind which nothing waits; what is left, as it is without groups.
            quick = settling.finish_unblocking(stage.sql, [stage.settlement()], keep=keep)
            if quick is not None:
                quick.do(stage.connection)
        settling.finish(stage.sql, [stage.settlement()], keep=keep).do(stage.connection)

    return do


def _lock_keys(stage: Stage) -> None:
    if stage.dialect.features.sorts_locks:
        stage.run(settling.lock_keys, [stage.settlement(in_key_order=[1, 2])])


def _exchange(*, keep: bool) -> Step:
    def do(stage: Stage) -> None:
        settlement = stage.settlement()
        if claiming.exchanges_at_once(stage.sql, [settlement]):
            stage.run(claiming.exchange, settlement, _request(stage), keep=keep)
        else:
            _finish(keep=keep)(stage)
            _claim(stage)

    return do


def _reject(stage: Stage) -> None:
    failed = stage.settlement(outcome=Outcome.REJECTED, error="reason", attempted_at=1)
    stage.run(settling.finish_apart, failed, settling.archive_messages)


def _attempt(stage: Stage) -> None:
    values: dict[str, Any] = {}
    for index in range(stage.rows):
        # Of other attempts than those of one message, which may end in the same moment.
        values |= {f"p_message_id_{index}": index + 1, f"p_attempt_{index}": stage.rows}
        values |= {f"p_consumer_id_{index}": _STAMP.consumer_id, f"p_outcome_{index}": "retried"}
    stage.sql.get(attempts.insert_attempts, stage.rows).run(stage.connection, values)


def _forget_attempts(stage: Stage) -> None:
    stage.run(attempts.prune_attempts, 0, _BATCH)
    stage.run(change_by_ids, attempts.forget_messages, [1, 2])


def _remember_keys(stage: Stage) -> None:
    stage.run(deduplication.remember_keys, stage.settlement(dedup_us=_SECOND))


def _register(stage: Stage) -> None:
    consumer = {"consumer_id": _STAMP.consumer_id, "name": "name", "host": "host", "pid": 1}
    registration = consumer | {"token_key": "key"}
    stage.on_system(registrations.register, stage.dialect.expressions, registration, _SECOND)


def _held(*, contents: bool) -> Step:
    def do(stage: Stage) -> None:
        stage.run(settling.claimed_rows, stage.settlement().ids, contents=contents)

    return do


def _edit(stage: Stage) -> None:
    stage.run(selection.edit_messages, _chosen(stage), {"available_at": 1})


def _chosen(stage: Stage, status: Status | None = None) -> selection.Criteria:
    found = None if status is None else selection.has_status(stage.tables, status)
    return selection.Criteria(archived=False, conditions=(), status=found)


def _why(stage: Stage) -> None:
    stage.run(why.read_live, 1)
    stage.run(why.ahead_of, 1, (1, 1))
    stage.run(why.living_consumers)
    stage.run(why.holders)
    stage.run(why.permanent_consumers)
    stage.run(why.read_ended, 1)


def _requeue(stage: Stage) -> None:
    stage.run(
        requeue,
        selection.Criteria(archived=True, conditions=()),
        selection.Page(stage.rows),
        up_to=_LAST,
        priorities=1,
        forget_keys=True,
    )


def _prune(stage: Stage) -> None:
    stage.run(last_to_prune, "done", ttl=_SECOND, keep=1)
    stage.run(prune_archive, "done", (0, (_LAST, 1)), stage.rows)


def _dead_letter_unknown(stage: Stage) -> None:
    sql = stage.statements(dataclasses.replace(stage.tables, known_kinds=("kind",)))
    dead_letter_unknown(
        stage.connection,
        sql,
        level=0,
        due_for=_SECOND,
        limit=1,
        disposition=lambda _: Disposition(keep=True, error="unknown kind"),
    )


def _round_opened(stage: Stage) -> None:
    round_store.lock(stage.connection, stage.tables, _STAMP.consumer_id)
    opened = [round_store.Round(1, stage.rows)]
    round_store.open_rounds(stage.connection, stage.tables, _STAMP.consumer_id, opened)


def _round_claimed(stage: Stage) -> None:
    round_store.lock(stage.connection, stage.tables, _STAMP.consumer_id, shared=True)
    round_store.win_seal(stage.connection, stage.tables, _STAMP.consumer_id, 1)
    stage.run(round_store.claim_round, _STAMP.consumer_id, round_store.Round(1, stage.rows), 1)
    round_store.seal(stage.connection, stage.tables, _STAMP.consumer_id, 1, 1)


def _round_expired(stage: Stage) -> None:
    stage.run(registry.is_expiring)
    stage.run(round_store.expired_of_round, _STAMP.consumer_id, 1)


def _round_finished(*, keep: bool) -> Step:
    def do(stage: Stage) -> None:
        span = (_STAMP.consumer_id, 0, 1)
        stage.run(round_store.finish_rounds, span, keep=keep, dedup_us=None)
        round_store.forget_rounds(stage.connection, stage.tables, _STAMP.consumer_id, 1)

    return do


def _staged_commit(stage: Stage) -> None:
    batch = staged_writes.BatchName("writer", 1, WHOLE)
    staged_writes.note_commit(stage.connection, stage.tables, batch, keep=None)
    staged_writes.complete_commit(stage.connection, stage.tables, batch, 1)


def _fire(stage: Stage) -> None:
    stage.on_scope(schedules.pending_schedules)
    stage.on_scope(schedules.locked_schedule, "schedule", wait=False)
    schedules.is_there(stage.connection, stage.tables, "key")
    record = schedules.ScheduleRecord(
        name="schedule",
        queue=stage.tables.queue,
        definition="{}",
        next_at=1,
        revision=1,
        paused=False,
        created_at=1,
        now=1,
    )
    runs = schedules.runs_text([schedules.Run(1, 1)], 1)
    stage.on_scope(schedules.change_schedule, record, next_at=2, last_runs=runs)


def _reply_sent(stage: Stage) -> None:
    stage.run(replies.keep)


def _withdraw(stage: Stage) -> None:
    stage.sql.get(replies.unbegun).run(stage.connection)
    stage.run(selection.delete_message, 1)


def _of(do: Callable[..., object], *arguments: Any, **options: Any) -> Step:
    return lambda stage: stage.run(do, *arguments, **options)


def _settled(do: Callable[..., object], *arguments: Any, **options: Any) -> Step:
    return lambda stage: stage.run(do, stage.settlement(), *arguments, **options)


def _broken(stage: Stage) -> None:
    stage.run(repair.find_broken, stage.rules, None, stage.rows)


def _idle(stage: Stage) -> None:
    stage.run(repair.remove_idle, "x", stage.rows, _SECOND)


OF_GROUPS: Final[Mapping[str, Step]] = {
    "groups, claim first messages": _claim_first,
    "groups, exchange for first messages": _exchange_first,
    "groups, park": _park,
    "groups, create rows": _of(groups_operations.know, ["x1", "x2"]),
    "groups, list": lambda stage: stage.run(read_groups, stage.rules, most=stage.rows),
    "groups, count": lambda stage: stage.run(stats.counted_groups, stage.rules.rate),
    "groups, change": lambda stage: stage.run(change_group, "x1", {"own_limit": 1}, stage.rules),
    "reap, find broken groups": _broken,
    "reap, find groups that nothing blocks": _of(blocking.find_blocked_by_nothing, _BATCH),
    "reap, remove idle groups": _idle,
}
"""Only of queues with groups."""

OF_LIMITS: Final[Mapping[str, Step]] = {
    "limit, look for room": _of(has_room),
    "reap, count what is in hand": _of(count_others),
}
"""Only of queues with a ``queue_limit``."""

OF_RATES: Final[Mapping[str, Step]] = {"rate, look for a token": _of(look_for_token)}
"""Only of queues with a ``queue_rate``."""

_SINGLE: Final[Mapping[str, Step]] = {
    "claim": _claim,
    "take": _take(keep=False),
    "take, archive": _take(keep=True),
    "ack": _finish(keep=False),
    "ack, archive": _finish(keep=True),
    "ack, dedup window": _remember_keys,
    "exchange": _exchange(keep=False),
    "exchange, archive": _exchange(keep=True),
    "nack": _settled(settling.retry, _SECOND),
    "nack, attempt": _attempt,
    "release": _settled(settling.release),
    "reject": _reject,
    "extend": _settled(settling.extend, 1),
    "held": _held(contents=True),
    "held, without contents": _held(contents=False),
    "restore": _settled(settling.restore),
}
"""These are told apart by whether they concern one message or a batch."""

_MESSAGES: Final[Mapping[str, Step]] = {
    "publish": _publish(),
    "publish, delayed": _publish(delay=1),
    "publish, key": _publish(key="key"),
    "publish, key, delayed": _publish(key="another key", delay=1),
    "publish, expiring": _publish(expires=_SECOND),
    "publish, first expiring": lambda stage: stage.sql.get(registry.set_expiring).run(
        stage.connection
    ),
    "publish, replace": _replace,
    "publish, batch": _publish_many(None, None),
    "publish, batch with keys": _publish_many("one", "two"),
    "publish, dedup window": lambda stage: stage.run(deduplication.recently_finished, ["key"]),
    "notify": lambda stage: stage.dialect.notifications.notify(stage.connection, stage.sql),
    "request, read reply": _of(replies.find_reply, "id"),
    "request, withdraw": _withdraw,
    "reply": _reply_sent,
}
_CONSUMING: Final[Mapping[str, Step]] = {
    "claim, known kinds": _claim_known_kinds,
    "claim, look first": _look,
    "held, read keys": lambda stage: stage.on_system(
        registrations.token_keys, [_STAMP.consumer_id]
    ),
    "claim, edit count": _of(registry.edit_count),
    "claim, give back a lost answer": _of(claiming.unclaim_round, _STAMP),
    "release, all of a consumer": _of(claiming.unclaim_all, _STAMP.consumer_id),
    "release, delayed": _settled(settling.release, 1),
    "settle, lock messages with keys": _lock_keys,
}
_KEEPING: Final[dict[str, Step]] = {
    "consumer, register": _register,
    "consumer, heartbeat": lambda stage: stage.on_system(
        registrations.renew, stage.dialect.expressions, _STAMP.consumer_id, _SECOND
    ),
    "consumer, heartbeat with news": lambda stage: stage.on_system(
        registrations.renew,
        stage.dialect.expressions,
        _STAMP.consumer_id,
        _SECOND,
        handles="{}",
    ),
    "consumer, tell what it handles": lambda stage: stage.on_system(
        registrations.tell, _STAMP.consumer_id, "{}"
    ),
    "consumer, unregister": lambda stage: stage.on_system(registrations.remove, _STAMP.consumer_id),
    "reap, find overdue consumers": lambda stage: stage.on_system(
        registrations.overdue, stage.dialect.expressions
    ),
    "reap, declare dead": lambda stage: stage.on_system(
        registrations.declare_dead, stage.dialect.expressions, [_STAMP.consumer_id]
    ),
    "reap, remove dead consumer": lambda stage: stage.on_system(
        registrations.remove_dead, _STAMP.consumer_id
    ),
    "reap, find expired leases": _of(dead_claims.expired_leases, 5, _BATCH),
    "reap, find claims of the dead": _of(dead_claims.orphaned_claims, 5, _BATCH),
    "reap, read holders": _of(dead_claims.holders_of, [_STAMP.consumer_id]),
    "reap, read holders of attempts": _of(attempts.read_holders, [_STAMP.consumer_id]),
    "reap, dead-letter unknown kinds": _dead_letter_unknown,
    "reap, find expired messages": _of(expired_messages.find_expired, 0, _BATCH),
    "reap, end expired messages": _of(
        expired_messages.end_expired,
        [1, 2],
        lambda _: Disposition(keep=True, error="expired", outcome=Outcome.EXPIRED),
    ),
    "reap, find edited claims": _of(dead_claims.find_half_claimed, 0, _BATCH, 1),
    "reap, clear edited claims": _of(
        change_by_ids, builder=dead_claims.unclaim_half_claimed_ids, ids=[1, 2]
    ),
    "reap, move to the last priority": _of(dead_claims.move_to_last_level, [1, 2], 1),
    "reap, prune archive": _prune,
    "reap, forget attempts": _forget_attempts,
    "reap, prune keys": _of(deduplication.prune_keys, _BATCH),
    "reap, prune commits": lambda stage: stage.on_system(prune_commits, stage.dialect.expressions),
    "reap, find stages": lambda stage: stage.on_system(
        orphaned_stages, stage.dialect.expressions, timeout=_SECOND
    ),
}
_OPERATING: Final[dict[str, Step]] = {
    "queue, read settings": lambda stage: stage.on_system(
        registry.queue_record, stage.tables.prefix, stage.tables.queue
    ),
    "stats": _of(stats.counts),
    "list, by id": lambda stage: stage.run(
        selection.list_messages, _chosen(stage), selection.Page(1, after=1)
    ),
    "list, by status": lambda stage: stage.run(
        selection.list_messages, _chosen(stage, Status.DELAYED), selection.Page(stage.rows + 1)
    ),
    "count, by status": lambda stage: stage.run(
        selection.count_selected, _chosen(stage, Status.READY)
    ),
    "why": _why,
    "attempts": lambda stage: stage.sql.get(attempts.attempts_of).run(stage.connection),
    "edit": _edit,
    "result, keep": _settled(settling.keep_results, {1: "0", 2: "0"}),
    "result, look": _of(results.is_unfinished, 1),
    "result, read": _of(results.read_ending, 1),
    "cancel": _of(settling.cancel_message, 1, Disposition(keep=True, error="reason"), {}),
    "remove": lambda stage: stage.run(selection.remove_messages, _chosen(stage)),
    "delete": _of(selection.delete_message, 1),
    "purge": _of(purge.purge, with_claimed=False),
    "requeue": _requeue,
}
_CAPABILITIES: Final[dict[str, Step]] = {
    "topic, read subscriptions": lambda stage: topics.subscriptions(
        stage.connection, stage.statements(stage.system), stage.tables.prefix, "topic"
    ),
    "schedule, fire": _fire,
    "durable consumer, open round": _round_opened,
    "durable consumer, claim round": _round_claimed,
    "durable consumer, find expired": _round_expired,
    "durable consumer, read round": _of(round_store.read_round, _STAMP.consumer_id, 1),
    "durable consumer, ack rounds": _round_finished(keep=False),
    "durable consumer, ack rounds, archive": _round_finished(keep=True),
    "durable consumer, release rounds": _of(round_store.unclaim_rounds, _STAMP.consumer_id, 0, 1),
    "staged write, commit": _staged_commit,
}
# An adopted table has neither payloads, keys and kinds, nor an archive of its own.
_WITH_PAYLOADS: Final = frozenset(
    {
        *_MESSAGES.keys() - {"notify"},
        *_CAPABILITIES,
        "ack, dedup window",
        "ack, dedup window, batch",
        "claim, known kinds",
        "reap, dead-letter unknown kinds",
        "reap, find expired messages",
        "reap, end expired messages",
        "reap, prune archive",
        "reap, prune keys",
    }
)


def _operations() -> Mapping[str, tuple[Step, int]]:
    both: dict[str, tuple[Step, int]] = {}
    for name, do in _SINGLE.items():
        both |= {name: (do, 1), f"{name}, batch": (do, _BATCH)}
    first = {name: (do, 1) for name, do in _MESSAGES.items()}
    middle = {name: (do, 1) for name, do in _CONSUMING.items()}
    others = _KEEPING | _OPERATING | _CAPABILITIES
    return first | both | middle | {name: (do, _BATCH) for name, do in others.items()}


OPERATIONS: Final = _operations()


def statements_of(queue: Queue) -> list[Statement]:
    """The statements that operations on a queue send on its engine, in a stable order.

    Statements that begin or end a transaction are left out. A batch is shown with two messages.
    """
    found: list[Statement] = []
    first: dict[str, str] = {}
    tables = core_of(queue).context.tables
    further: dict[str, Step] = {}
    further |= OF_GROUPS if tables.grouped else {}
    further |= OF_LIMITS if tables.limited else {}
    further |= OF_RATES if tables.rated else {}
    several = {name: (do, _BATCH) for name, do in further.items()}
    for name, (do, rows) in {**OPERATIONS, **several}.items():
        rehearsal = Rehearsal(core_of(queue).context.connections.engine.dialect, rows)
        stage = Stage(queue, rows, cast("Connection", rehearsal), rehearsal.statements)
        if name in _WITH_PAYLOADS and not stage.tables.has_payloads:
            continue
        do(stage)
        sent = texts(rehearsal.noted)
        for place, text in enumerate(sent, 1):
            statement = Statement(name, place, len(sent), text, first.get(text))
            first.setdefault(text, statement.name)
            found.append(statement)
    return found
