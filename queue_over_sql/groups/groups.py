"""What operators do with the groups of a queue: list, pause, resume, unblock, configure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import func, select, update

from queue_over_sql.groups.exits import wake
from queue_over_sql.groups.listing import ORDERS, GroupInfo, GroupsBy, read_group, read_groups
from queue_over_sql.groups.operations import MOST_WOKEN, know, room
from queue_over_sql.groups.statements import rows_of_groups
from queue_over_sql.groups.strategy import GroupRules
from queue_over_sql.queues import registry
from queue_over_sql.queues.context import once_more
from queue_over_sql.settings import UNSET, Unset
from queue_over_sql.sql.operation import operation
from queue_over_sql.statements.parameters import batches
from queue_over_sql.values.checks import check_choice, check_text, check_whole
from queue_over_sql.values.limits import GROUP_LENGTH, MOST_IN_HAND, MOST_WEIGHT
from queue_over_sql.values.rates import own_rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.sql.compiled import StatementCache

Listed: TypeAlias = list[GroupInfo]


@operation(atomic=True, durable=True)
def change_group(
    connection: Connection,
    sql: StatementCache,
    name: str,
    values: Mapping[str, Any],
    rules: GroupRules | None = None,
) -> bool:
    """Change columns of a group's row; False if it has none.

    With the queue's rules, messages of it may be ready then: consumers look for them.
    """
    rows = rows_of_groups(sql.subject)
    # The row first: whoever parks messages of the group locks it, too.
    # Another number, so that no claim under way ends by what it read before: see PostgreSQL's.
    changed = update(rows).where(rows.c.group_key == name).values({"seq": rows.c.seq + 1, **values})
    if not connection.execute(changed).rowcount:
        return False
    if rules is not None:
        row = select(rows.c.own_limit, rows.c.weight).where(rows.c.group_key == name)
        own, weight = connection.execute(row).one()
        most = weight or 1 if rules.fair else MOST_WOKEN
        wake(connection, sql, [name] * min(rules.limit if own is None else own, most))
        registry.count_edit(connection, sql.subject)
    return True


@operation(atomic=True, durable=True, wakes=True)
def wake_all(connection: Connection, sql: StatementCache, *, limit: int, fair: bool) -> None:
    """Let claims meet what is parked of each group, because more may be in hand now."""
    live = sql.subject.live
    parked = select(live.c.group_key).where(live.c.parked_at.is_not(None)).distinct()
    with sql.subject.dialect.sessions.scanning(connection):
        found = sorted(connection.execute(parked).scalars())
    for names in batches(found):
        wake(connection, sql, room(connection, sql, names, limit=limit, fair=fair))
    if found:
        registry.count_edit(connection, sql.subject)


class Groups:
    """The groups of a queue's messages. ``Queue.groups`` has it.

    ``queue.groups["vip"]`` is one of them, even if it has no message yet.
    """

    def __init__(self, context: QueueContext) -> None:
        self._context = context

    def __getitem__(self, name: str) -> Group:
        check_text("group", name, GROUP_LENGTH, least=0)
        return Group(self._context, name)

    @once_more
    def list(self, *, by: GroupsBy = "waiting", limit: int = 100) -> Listed:
        """List the groups that have messages, or that an operator paused or configured.

        It reads all messages of the queue that have a group.

        Args:
            by: ``"waiting"``: the largest backlog first; ``"age"``: the oldest message first;
                ``"blocked"``: the groups first that a dead letter blocks, then those that an
                operator paused, then the others by their backlog.
            limit: the largest number of groups.

        Raises:
            ValueError: the queue has no groups.
        """
        check_choice("by", by, ORDERS)
        most = check_whole("limit", limit)
        rules = rules_of(self._context)
        sql = self._context.sql
        return self._context.run(lambda c: read_groups(c, sql, rules, by=by, most=most))

    def __repr__(self) -> str:
        return f"<Groups {self._context.name}>"


class Group:
    """One group of a queue's messages. ``Queue.groups`` has it.

    What is changed here takes effect at once, for the claims of all processes. A change waits while
    a transaction of ``take`` has messages of the group.
    """

    def __init__(self, context: QueueContext, name: str) -> None:
        self._context = context
        self.name = name

    @once_more
    def info(self) -> GroupInfo:
        """How the group stands.

        Raises:
            ValueError: the queue has no groups.
        """
        rules, sql = rules_of(self._context), self._context.sql
        return self._context.run(lambda c: read_group(c, sql, rules, self.name))

    def configure(
        self,
        *,
        limit: int | Unset | None = UNSET,
        rate: str | Unset | None = UNSET,
        weight: int | Unset | None = UNSET,
    ) -> None:
        """Give the group a limit, a rate or a weight of its own, or take it back.

        Args:
            limit: how many of its messages may be in hand at once; None: as many as the queue's
                ``group_limit`` says. What is in hand already stays there.
            rate: how fast its messages may start, as ``"100/min"``; None: as the queue's
                ``group_rate`` says; ``"unlimited"``: as fast as they can.
            weight: its share in a queue with ``group_fair``: a group with the weight 3 gets three
                times as many messages as one with 1. From 1 to 1,000; None: 1.

        Raises:
            TypeError: the rate is no text, or another one no whole number.
            ValueError: the limit or the weight is out of its range, the rate is none, nothing is
                given, or the queue has no groups.
        """
        values: dict[str, Any] = {}
        if not isinstance(limit, Unset):
            if limit is not None:
                check_whole("limit", limit, 1, MOST_IN_HAND)
            values["own_limit"] = limit
        if not isinstance(rate, Unset):
            values["own_rate_us"], values["own_burst"] = own_rate(rate)
        if not isinstance(weight, Unset):
            if weight is not None:
                check_whole("weight", weight, 1, MOST_WEIGHT)
            values["weight"] = weight
        if not values:
            msg = "give the group a limit, a rate or a weight"
            raise ValueError(msg)
        self._change(values)

    def pause(self) -> None:
        """Stop delivering the messages of this group; claimed ones can still be settled.

        Raises:
            ValueError: the queue has no groups.
        """
        rules_of(self._context)
        rows = rows_of_groups(self._context.tables)
        now = self._context.tables.expressions.now()
        self._change({"paused_at": func.coalesce(rows.c.paused_at, now)}, wakes=False)

    def resume(self) -> None:
        """Deliver the messages of this group again.

        Raises:
            ValueError: the queue has no groups.
        """
        self._change({"paused_at": None})

    def unblock(self) -> None:
        """Deliver the messages behind the dead letter that blocks this group.

        The dead letter stays in the archive. See the setting ``block_on_failure`` of a queue.

        Raises:
            ValueError: the queue has no groups.
        """
        self._change({"blocked_by": None})

    @once_more
    def _change(self, values: Mapping[str, Any], *, wakes: bool = True) -> None:
        context = self._context
        rules = rules_of(context)
        changed, sql, waking = False, context.sql, rules if wakes else None
        while not changed:
            # The reaper may remove an old row in which nothing is written.
            context.run(lambda c: know(c, sql, [self.name]))
            changed = context.run(change_group.of(sql, self.name, values, waking))
        if wakes:
            context.wake_consumers()

    def __repr__(self) -> str:
        return f"<Group {self.name!r} of {self._context.name}>"


def rules_of(context: QueueContext) -> GroupRules:
    """The rules of a queue's groups.

    Raises:
        ValueError: it has no groups.
    """
    if not context.tables.grouped:
        # Another process may have turned them on.
        context.look_again()
    if not context.tables.grouped:
        msg = (
            f"queue {context.name!r} has no groups. Turn them on with "
            f"create_queue({context.name!r}, group_limit=1)."
        )
        raise ValueError(msg)
    return GroupRules.of(context.settings)
