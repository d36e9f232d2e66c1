"""The files of statements: what operations send, with the indexes that the statements use."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, update

from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.queue import core_of
from queue_over_sql.settling.operations import keep_results, restore
from queue_over_sql.sql.compiled import StatementCache
from queue_over_sql.sql_listing import formatted, statements_of
from queue_over_sql.sql_listing.formatting import tokens
from queue_over_sql.sql_listing.named import OPERATIONS, Stage
from tests.dialects.plans.explain import plans
from tests.dialects.plans.hot_statements import ACTS, OldQueue, length, verbs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from queue_over_sql.sql_listing import Statement
    from tests.dialects.traffic import Sent

FOLDER: Final = Path(__file__).parents[1] / "sql"
COMMAND: Final = (
    "./scripts/test --write-sql tests/dialects/plans/test_sql_files.py --engines={engine}"
)

_ON_ROWS: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"})
# What stands in the place of a parameter when a driver has put the value in, or has a sign for it.
_VALUE: Final = r"(?:(?:_binary )?'(?:[^'\\]|''|\\.)*'|[xX] '\w*'|(?:- )?[\d.]+|NULL|\$\d+|\?)"
_SOME: Final = rf"(?:IN|JSON_ARRAY) \( {_VALUE}(?: :: \w+)?(?: , {_VALUE}(?: :: \w+)?)* \)"
_LIST: Final = re.compile(r"(?:IN|JSON_ARRAY) \( :\w+(?: :: \w+)?(?: , :\w+(?: :: \w+)?)* \)")
_ANY_LIST: Final = "IN(…)"
_NAMED: Final = re.compile(r"%\(.+?\)s")
_TEXT: Final = re.compile(r"'(?:[^'\\]|''|\\.)*'", re.DOTALL)
# What a session asks about itself and the database.
_OF_THE_SESSION: Final = re.compile(
    r"SELECT 1$|SELECT @@|pragma_database_list|SELECT CONCAT_WS|COALESCE\(DATABASE_PATH"
    r"|current_(?:schema|database)|pg_(?!notif)|has_table_privilege",
    re.IGNORECASE,
)
# Conditions of users decide what these send, or the number of messages does.
_VARY: Final = ("edit", "remove in batches", "read what a claim", "look for anything", "prune")
_WATCHED: Final = {
    "jobs": "queue_jobs",
    "jobs_archive": "queue_jobs_archive",
    "consumers": "queue_over_sql_consumers",
}
# Whose rows are few.
_FEW: Final = "consumers"
_INDEXES: Final = {"id": "primary key", "key": "unique key", "archive": "archive index"}
# Two indexes of an archive begin with the outcome.
_PRUNE: Final = "reap, prune archive"
# How many messages match, as the statistics say, decides how these are found.
_BY_NUMBERS: Final = frozenset(
    {"stats", "list, by status", "count, by status", "edit", "remove", "purge", _PRUNE}
)
_PAST: Final = datetime(2000, 1, 1, tzinfo=UTC)


def pattern_of(text: str) -> re.Pattern[str]:
    """A pattern that finds a statement in what drivers send, whatever its values are.

    A list of values may have any length.
    """
    words = _LIST.sub(_ANY_LIST, " ".join(tokens(text))).split(" ")
    return re.compile(" ".join(map(_pattern, words)))


def _pattern(word: str) -> str:
    if word == _ANY_LIST:
        return _SOME
    return _VALUE if re.match(r":\w", word) else re.escape(word).replace("%", "%%?")


def as_tokens(sent: str) -> str:
    """What a driver sends, as ``pattern_of`` expects it."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"'{len(kept) - 1}'"

    without = _NAMED.sub("?", _TEXT.sub(keep, sent.strip("; ")))
    joined = " ".join(tokens(without))
    return re.sub(r"'(\d+)'", lambda found: kept[int(found[1])], joined)


class Heard:
    """Which statements of the files were really sent, and what their plans read."""

    def __init__(self, old: OldQueue, statements: Sequence[Statement]) -> None:
        self._old = old
        self.patterns = {each.text: pattern_of(each.text) for each in statements}
        self.reads: dict[str, set[str]] = defaultdict(set)
        self.unknown: dict[str, str] = {}

    def listen(self, name: str, act: Callable[[], object]) -> None:
        """Run an act, and find what it sends in the files."""
        sent = [each for each in self._old.traffic.of(act) if is_ours(each)]
        with self._old.service._parts.connections.engine.connect() as connection:
            for each in sent:
                joined = as_tokens(each.text)
                found = [t for t, pattern in self.patterns.items() if pattern.fullmatch(joined)]
                if not found:
                    self.unknown.setdefault(each.text, name)
                    continue
                reads: set[str] = set()
                for plan in plans(connection, self._old.engine, [each]):
                    reads |= plan.reads
                for text in found:
                    self.reads[text] |= reads


def is_ours(sent: Sent) -> bool:
    """Whether it reads or writes rows, and is no question of the session."""
    return sent.verb in _ON_ROWS and not _OF_THE_SESSION.search(sent.text)


def hear_all(old: OldQueue, statements: Sequence[Statement]) -> Heard:
    """Do everything that the files know, on a real queue."""
    heard = Heard(old, statements)
    public = {
        name: act
        for name, act in ACTS.items()
        if not name.startswith(_VARY) and not re.search(r"\b100\b", name)
    }
    at_once = old.queue_dialect.strategy(Claims).exchanges_at_once
    for name, prepare in (public | verbs(2)).items():
        if not name.startswith("at once") or at_once:
            heard.listen(name, prepare(old))
    _prepare(old, heard)
    context = core_of(old.queue).context

    def statements_on(subject: Any) -> StatementCache:
        if subject is context.tables:
            return context.sql
        return StatementCache(subject, context.connections.engine.dialect)

    # Others leave messages in the archive that come before those with keys.
    first, last = ["requeue"], ["edit", "remove", "purge"]
    others = [name for name in OPERATIONS if name not in {*first, *last}]
    for name in [*first, *others, *last]:
        act, rows = OPERATIONS[name]

        def run(connection: Connection, act: Any = act, rows: int = rows) -> None:
            act(Stage(old.queue, rows, connection, statements_on))

        heard.listen(f"operation {name!r}", partial(old.run, run))
    return heard


def _prepare(old: OldQueue, heard: Heard) -> None:
    """Let there be something for each operation: keys, dead letters, claims of the dead."""
    old.service.create_queue("jobs", dedup_window=3600.0)
    old.queue.refresh()
    tables, sql = core_of(old.queue).context.tables, core_of(old.queue).context.sql
    old.run(lambda c: c.execute(delete(tables.archive)))
    for number in range(6):
        key = f"early {number}"
        heard.listen("publish", lambda: old.queue.publish("early", key=key, at=_PAST))  # noqa: B023 - runs at once
    heard.listen("publish with a finished key", lambda: old.queue.publish("x", key="k"))
    core_of(old.queue).claimer.look_fully()
    for count in (1, 2):
        messages = old.queue.consume(count)
        heard.listen("ack with keys", lambda: old.queue.ack(messages))  # noqa: B023 - runs at once
    messages = old.queue.consume(2)
    heard.listen("reject with keys", lambda: old.queue.reject(messages, "bad"))
    [settlement] = core_of(old.queue).settlements.grouped(old.queue.consume(2))
    keeping = partial(
        keep_results, sql=sql, settlement=settlement, results=dict.fromkeys(settlement.ids, "0")
    )
    heard.listen("keep results", lambda: old.run(keeping))
    heard.listen("restore", lambda: old.run(partial(restore, sql=sql, settlement=settlement)))
    claimed = [message.id for message in old.queue.consume(4)]
    old.queue.publish("other", kind="other", at=_PAST)
    live, keys = tables.live, tables.dedup_keys
    old.run(
        lambda c: c.execute(
            update(live).where(live.c.id.in_(claimed[:2])).values(lease_expires_at=1)
        )
    )
    old.run(
        lambda c: c.execute(
            update(live).where(live.c.id.in_(claimed[2:])).values(consumer_id="nobody")
        )
    )
    old.run(lambda c: c.execute(update(keys).values(expires_at=1)))


_HEAD: Final = """
-- What queue_over_sql sends to {engine}, by operation. Do not edit this file, but run:
-- {command}
--
-- Parameters are :names. A batch is shown with two messages. Statements that begin or end a
-- transaction are left out. Comments say what a statement reads of the large tables: EXPLAIN on a
-- queue of {messages:,} messages.
"""


def rendered(old: OldQueue) -> tuple[str, Heard]:
    """The file of an engine, and what was heard for it."""
    statements = statements_of(old.queue)
    heard = hear_all(old, statements)
    command = COMMAND.format(engine=old.engine)
    parts = [_HEAD.strip().format(engine=old.engine, command=command, messages=length(old.engine))]
    for each in statements:
        if each.same_as is not None:
            parts.append(f"{each.title}: as {each.same_as}")
            continue
        by_planner = each.operation in _BY_NUMBERS
        reads = [] if by_planner else _reads(heard.reads.get(each.text, set()))
        parts.append("\n".join([each.title, *reads, f"{formatted(each.text)};"]))
    return "\n\n".join(parts) + "\n", heard


def _reads(reads: set[str]) -> list[str]:
    """Comments about the tables that are large enough for a plan to matter."""
    found = []
    # The planner may choose either way, and chooses otherwise in the next run.
    either = any(read.startswith(f"{_FEW}.") for read in reads)
    for read in sorted(reads):
        table, _, index = read.rstrip("*").partition(".")
        if table in _WATCHED and not (either and table == _FEW and not index):
            by = _INDEXES.get(index, f"{index} index")
            how = f"{_WATCHED[table]} by its {by}" if index else _WATCHED[table]
            # MySQL calls a range of the primary key all of it where most rows are in the range.
            whole = read.endswith("*") and index != "id"
            found.append(f"-- reads {'all of ' if whole else ''}{how}")
    return found
