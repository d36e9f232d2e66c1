"""Claims from several queues: each has its turn, and one query looks at all that were empty."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BindParameter, bindparam, select
from sqlalchemy.sql import visitors

from queue_over_sql.claiming.claimer import FIRST_POLL, LAST_POLL
from queue_over_sql.claiming.statements import anything_eligible
from queue_over_sql.errors import DatabaseRefused
from queue_over_sql.queues.registry import select_edit_count
from queue_over_sql.sql.compiled import CompiledStatement
from queue_over_sql.statements.requests import wanted
from queue_over_sql.values.backoff import poll_pauses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection, ScalarSelect, Select

    from queue_over_sql.claiming.claimer import Claimer
    from queue_over_sql.message import Message
    from queue_over_sql.queues.context import QueueContext
    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache

# Each queue is claimed from, and not only looked at, within so many rounds: a claim also does what
# a look cannot, such as to search below the low watermark.
_ROUNDS: Final = 10
# The largest number of queues in one query, and of sets of queues that are remembered.
_AT_ONCE: Final = 32
_MOST_KEPT: Final = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """One of several queues: ``claim`` claims from it and does not wait."""

    context: QueueContext
    claimer: Claimer
    claim: Callable[[], list[Message]]

    @property
    def lows(self) -> list[int]:
        """Where a look begins, for each priority level."""
        return [self.claimer.low(level) for level in range(self.levels)]

    @property
    def levels(self) -> int:
        """The number of priority levels."""
        return self.context.known_settings.priorities


class SeveralQueues:
    """Claims of one service from several queues."""

    def __init__(self) -> None:
        self._looks: OrderedDict[tuple[tuple[StatementCache, int], ...], CompiledStatement]
        self._looks = OrderedDict()
        # Whose turn is next, by the names of the queues.
        self._turns: dict[tuple[str, ...], int] = {}

    def consume(self, sources: Sequence[Source], seconds: float) -> list[Message]:
        """Claim from the first queue, in turn, that has messages; wait for them if none has."""
        deadline = time.monotonic() + seconds
        names = tuple(source.context.name for source in sources)
        arrivals, wakeups = sources[0].context.arrivals, sources[0].context.wakeups
        pauses = poll_pauses(FIRST_POLL, LAST_POLL)
        while True:
            seen = arrivals.count
            turn = self._turns.get(names, 0)
            messages, following = self._round([*sources[turn:], *sources[:turn]])
            if len(self._turns) >= _MOST_KEPT:
                self._turns.clear()
            self._turns[names] = (turn + following) % len(sources)
            now = time.monotonic()
            if messages or now >= deadline:
                return messages
            tokens = [source.claimer.token_at for source in sources]
            until = min([deadline, *(token_at for token_at in tokens if token_at > now)])
            wakeups.await_next_poll(seen, pauses, until - now)

    def _round(self, sources: Sequence[Source]) -> tuple[list[Message], int]:
        """Claim from the first of them that has messages; also how far the turn has gone on."""
        certain = 1 + len(sources) // _ROUNDS
        for place, source in enumerate(sources[:certain]):
            if messages := source.claim():
                return messages, place + 1
        for first in range(certain, len(sources), _AT_ONCE):
            some = sources[first : first + _AT_ONCE]
            for source in self._ready(some):
                if messages := source.claim():
                    return messages, first + some.index(source) + 1
        return [], certain

    def _ready(self, sources: Sequence[Source]) -> Sequence[Source]:
        """Those that may have something to claim."""
        lows = [source.lows for source in sources]
        levels = [len(each) for each in lows]
        caches = [source.context.sql for source in sources]
        key = tuple(zip(caches, levels, strict=True))
        look = self._looks.get(key)
        context = sources[0].context
        if look is None:
            statement = look_at([cache.subject for cache in caches], levels)
            dialect = context.connections.engine.dialect
            look = self._looks[key] = CompiledStatement(statement, dialect)
            if len(self._looks) > _MOST_KEPT:
                self._looks.popitem(last=False)
        values = {
            f"{name}_{queue}_{level}": value
            for queue, each in enumerate(lows)
            for level, low in enumerate(each)
            for name, value in wanted(level, 1, low).items()
        }

        def read(connection: Connection) -> Sequence[Any]:
            return look.run(connection, values).one()

        try:
            row = iter(context.connections.run(read))
        except DatabaseRefused:
            # One of them may be gone. The claim from it says so.
            return sources
        found = []
        for source, each in zip(sources, lows, strict=True):
            edits, any_ready = next(row), [next(row) for _ in each]
            # A look from the watermark on would miss what an edit put below it.
            if any(any_ready) or (any(each) and edits != source.claimer.edits):
                found.append(source)
        return found


def look_at(queues: Sequence[QueueTables], levels: Sequence[int]) -> Select[Any]:
    """Of each queue its edit count, and for each priority level whether a message is due."""
    columns = []
    for place, (tables, count) in enumerate(zip(queues, levels, strict=True)):
        columns.append(select_edit_count(tables).scalar_subquery())
        due = anything_eligible(tables, None).scalar_subquery()
        columns += [_renamed(due, f"_{place}_{level}") for level in range(count)]
    return select(*(column.label(f"c{place}") for place, column in enumerate(columns)))


def _renamed(due: ScalarSelect[Any], suffix: str) -> ScalarSelect[Any]:
    """With parameters of its own."""

    def replace(element: Any, **_: Any) -> Any:
        if isinstance(element, BindParameter) and not element.unique:
            return bindparam(element.key + suffix, None, type_=element.type)
        return None

    renamed: ScalarSelect[Any] = visitors.replacement_traverse(due, {}, replace)
    return renamed
