"""How an engine claims from a queue with groups, and moves aside what must wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.groups import statements
from queue_over_sql.message import AGE
from queue_over_sql.statements.operations import change_allowed
from queue_over_sql.statements.parameters import batches, bucket_of, id_values
from queue_over_sql.statements.requests import look_for
from queue_over_sql.values.limits import MOST_IN_HAND
from queue_over_sql.values.options import GROUP_KEY
from queue_over_sql.values.rates import Bucket, Rate

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.message import MessageRow
    from queue_over_sql.settings import EffectiveSettings
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.sql.dialect import QueueDialect
    from queue_over_sql.statements.requests import ClaimRequest, Settlement


class GroupRules(NamedTuple):
    """How messages of one group are handed out.

    Attributes:
        limit: how many of a group may be in hand, unless the group's row has a limit of its own.
        rate: how fast they may be taken, unless the group's row has a rate of its own.
        own_rates: whether any row may have one.
        ordered: whether they are handed out in the order of their ids, and a message that is not
            due blocks those behind it. With the limit 1 one claim may then get several, in order.
        fair: whether groups get fair shares; see ``groups.fair``. Only without order.
    """

    limit: int
    ordered: bool
    rate: Rate | None = None
    own_rates: bool = True
    fair: bool = False

    @classmethod
    def of(cls, settings: EffectiveSettings, *, own_rates: bool = True) -> GroupRules:
        """The rules of a queue with groups."""
        rate = None if settings.group_rate is None else Rate.of(settings.group_rate)
        limit, ordered = settings.group_limit or 1, settings.group_order == "fifo"
        return cls(limit, ordered, rate, own_rates, settings.group_fair and not ordered)

    @property
    def rated(self) -> bool:
        """Whether any group may have a rate."""
        return self.own_rates or self.rate is not None

    @property
    def unlimited(self) -> bool:
        """Whether groups have neither a limit nor a rate, unless one has its own."""
        return self.limit >= MOST_IN_HAND and self.rate is None

    def bucket(self, row: RateRow) -> Bucket | None:
        """The tokens of a group, by what its row says; None if it has no rate."""
        tat, own_rate, own_burst, now = row
        rate = self.rate if own_rate is None else Rate(own_rate, own_burst or 1)
        return Bucket(rate, now, tat) if rate is not None and rate.interval > 0 else None


RateRow: TypeAlias = "Sequence[Any]"
"""What ``statements.rate_columns`` reads."""


class GroupRequest(NamedTuple):
    """A claim of one priority level from a queue with groups.

    Attributes:
        claim: the stamp, the largest number of messages, the level, where to start, the condition.
        rules: of the queue.
        window: how many messages to look at along the claim index.
        past: groups to leave out, because they are known to be blocked.
        most: how many of one group to take at most; None: as many as there are.
        patient: in fair shares, take nothing while the messages of few groups may hide others, so
            that the caller can park these.
        everywhere: in fair shares, look for parked messages of any group if there is too little.
        ahead: and first of all, so that no group starves of which this consumer may not have the
            message in the claim index.
        heads: whether each message of the window, which are then as many as are wanted, is probably
            the first one of its group.
        broad: whether to lock the rows of all groups of the window at once, because the first ones
            gave nothing. Only where a claim is one statement.
    """

    claim: ClaimRequest
    rules: GroupRules
    window: int
    past: tuple[str, ...] = ()
    most: int | None = None
    patient: bool = False
    everywhere: bool = False
    ahead: bool = False
    heads: bool = False
    broad: bool = False

    def values(self) -> dict[str, Any]:
        """The bind parameters; the strategy gives those of names and ids."""
        return (
            self.claim.stamp()
            | self.claim.wanted()
            | {"p_window": self.window, "p_limit": self.rules.limit, "p_most": self.most}
            | {"p_look": look_for(self.window)}
            | {"p_rows": self.window if self.broad else self.claim.count}
            | statements.past_values(self.past)
        )

    @property
    def past_size(self) -> int:
        """For how many groups to compile a window."""
        return statements.past_size(self.past)

    def of(self, count: int) -> GroupRequest:
        """The same request for at most this many messages."""
        window = count if self.heads else self.window
        return self._replace(claim=self.claim.of(count), window=window)


class Seen(NamedTuple):
    """A message that a claim met in the claim index, whether it took it or not."""

    id: int
    group: str | None
    available_at: int


class GroupClaim(NamedTuple):
    """What a claim took and what it met.

    Attributes:
        rows: the claimed messages, in no particular order. Some may be outside of the window: they
            are the first ones of groups that were met.
        seen: the window, oldest first: by ``available_at`` and id.
        now: the database's clock; 0 if nothing was seen.
        hidden: the groups that fill the window, if others may wait behind it.
        lacking: in fair shares, groups that need rows and have none; nothing was taken then.
        took_all: whether ``rows`` are what it met, in that order, one of each group. Then ``seen``
            has only the last one.
    """

    rows: list[MessageRow]
    seen: list[Seen]
    now: int
    hidden: tuple[str, ...] = ()
    lacking: Sequence[str] = ()
    took_all: bool = False

    @classmethod
    def of_all(cls, rows: list[MessageRow]) -> GroupClaim:
        """A claim that took all that it met, one message of each group, and at least one."""
        rows.sort(key=AGE)
        last = Seen(rows[-1].id, group_of(rows[-1]), rows[-1].available_at or 0)
        return cls(rows, [last], rows[0].claimed_at or 0, took_all=True)


class GroupClaims:
    """The portable way, in several statements inside a transaction.

    A claim looks at a window of due messages along the claim index. Of the groups that it meets it
    takes the first messages by id, whatever their due time was, so that a message that committed
    late is not overtaken. Two claims of one group exclude each other by a lock on the group's row,
    which no claim waits for. What is in hand is counted from the messages.

    Messages without a group are claimed as in any other queue, by their place in the window.
    """

    at_once: ClassVar[bool] = False
    """A claim is one statement, so that it needs no transaction around it."""
    needs_rows: bool = True
    """A group is claimed only if it has a row."""
    reads_rates: ClassVar[bool] = False
    """A claim keeps to the rates of groups, whether there are any or not."""
    has_heads: ClassVar[bool] = False
    """``claim_heads`` does something."""
    exchanges_heads: ClassVar[bool] = False
    """``exchange_heads`` does something."""

    def __init__(self, dialect: QueueDialect) -> None:
        self._dialect, self._features = dialect, dialect.features

    def with_rates(self) -> GroupClaims:
        """The way of queues whose groups may have rates; it needs a transaction and rows."""
        return self

    def claim(
        self, connection: Connection, sql: StatementCache, request: GroupRequest
    ) -> GroupClaim:
        """Claim messages of one priority level, inside a transaction unless ``at_once``.

        It must give what the class says, and further:

        - The window is ``statements.window``, without ``request.past``; it locks its rows, and
          skips locked ones.
        - A group is left out if it has no row (``needs_rows``), if its row is locked by others,
          paused (``paused_at``) or blocked (``blocked_by``), or if as many of its messages are
          claimed as the limit allows: ``own_limit`` of its row, else ``rules.limit``. That must be
          read after its row is locked.
        - Without ``rules.ordered`` take of each other group messages of the window, at most
          ``most`` and what the limit leaves.
        - With ``rules.ordered`` take its first unclaimed messages by (group_key, id), parked or
          not, up to the first one that is not due (``coalesce(parked_at, available_at)``), does
          not fit (``claims.fitting``), or is locked by others. How many: as many as the window
          showed of it, at least the count divided by the number of groups (on most engines, of
          those that it may have), at most ``most`` and what the limit leaves. For a group with the
          limit 1 that leaves any number, because they go to one consumer.
        - Of a group with a rate take as many as it has tokens, spend these in its row, and let out
          the next parked one if more could be in hand.
        - Together at most ``count``, in the order of the window; a group's place in it is that of
          its first message there.
        - What is taken gets ``available_at = coalesce(parked_at, available_at)`` and ``parked_at =
          NULL``. With order, if any taken one of a group was parked or has ``blocks``, all taken
          ones of it get ``blocks = 1``; with the limit 1 only the last one by id.
        """
        raise UnsupportedByEngine("Queues on this engine cannot have groups.")

    def claim_heads(
        self, connection: Connection, sql: StatementCache, request: GroupRequest
    ) -> GroupClaim | None:
        """Claim a window of messages that are all the first ones of their groups, in a statement.

        With order and without rates; it needs no transaction. What it takes and writes is what
        ``claim`` would take of such a window and write, but it does not look for more.

        Returns:
            None if it claimed nothing, because the window has fewer than ``count`` messages, or
            several of one group, or because an engine that locks no rows met any other message.
            Then ``claim`` does it. What is left of a window need not be blocked.
        """
        return None

    def exchange_heads(
        self,
        connection: Connection,
        sql: StatementCache,
        settlements: Sequence[Settlement],
        request: GroupRequest,
        *,
        keep: bool,
    ) -> tuple[set[int], GroupClaim | None]:
        """As ``claim_heads``, together with the ack; only called if ``exchanges_heads``.

        It acks messages of claims of one consumer, which all end in the same way, and only those
        behind which no others of their groups wait.

        Returns:
            The ids that it acked, and what it claimed: None unless it acked all.
        """
        raise UnsupportedByEngine("This engine cannot ack and claim in one statement.")

    def move_aside(
        self,
        connection: Connection,
        sql: StatementCache,
        request: GroupRequest,
        blocked: Container[str],
        carriers: Container[int],
    ) -> int:
        """Park messages of blocked groups, except the carriers, inside a transaction.

        It looks at the next ``request.window`` due messages along the claim index. Those that
        others have locked stay where they are. Returns how many it parked.
        """
        look = sql.get(statements.window, request.claim.where, request.past_size, False)
        met = look.run(connection, request.values())
        ids = [row[0] for row in met if row[1] in blocked and row[0] not in carriers]
        moved = 0
        for batch in batches(ids):
            free: Sequence[int] = batch
            if self._features.skip_locked:
                lock = sql.get(statements.lock_waiting, bucket_of(len(batch)))
                free = sorted(row[0] for row in lock.run(connection, id_values(batch)))
            if free:
                moved += change_allowed(connection, sql, statements.set_parked, free)
        return moved


def group_of(row: MessageRow) -> str | None:
    """The group of a claimed message of a queue with groups."""
    group: str | None = row.columns[GROUP_KEY]
    return group
