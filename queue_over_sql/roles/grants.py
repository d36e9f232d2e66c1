"""The grants of each role as data and as SQL statements, and errors of missing rights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from queue_over_sql.errors import NotPermitted, UnsupportedByEngine
from queue_over_sql.schema.queue_tables import KEY_RELEASED
from queue_over_sql.values.options import DEFAULT_PREFIX

PUBLISHER: Final = "publisher"
CONSUMER: Final = "consumer"
OPERATOR: Final = "operator"
VIEWER: Final = "viewer"
ROLES: Final = (PUBLISHER, CONSUMER, OPERATOR, VIEWER)
SYSTEM_PREFIX: Final = "queue_over_sql_"

LIVE, ARCHIVE, KEYS, REPLIES = "QUEUE", "QUEUE_archive", "QUEUE_dedup_keys", "REPLY_QUEUE"
GROUPED, GROUPS, LIMITS = "QUEUE with groups", "QUEUE_groups", "QUEUE_limits"
WAITING = 'QUEUE with unique="waiting"'
SEQUENCE, REPLY_SEQUENCE = "QUEUE_id_seq", "REPLY_QUEUE_id_seq"


@dataclasses.dataclass(frozen=True)
class Grant:
    """A right of a role.

    Attributes:
        right: such as ``INSERT``.
        table: a shared table without its prefix, or one of a queue's, such as ``QUEUE_archive``;
            ``QUEUE with groups`` is the table of a queue that has groups.
        why: what the role uses it for.
        columns: the columns to which the right is limited; empty for all.
    """

    right: str
    table: str
    why: str
    columns: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The right with its columns, as in a GRANT statement."""
        return f"{self.right} ({', '.join(self.columns)})" if self.columns else self.right


def _rights(table: str, rights: str, why: str) -> list[Grant]:
    return [Grant(right, table, why) for right in rights.split()]


_EVERY_SYSTEM_TABLE = (
    "queues",
    "consumers",
    "consumer_rounds",
    "kinds",
    "schedules",
    "topics",
    "subscriptions",
    "stages",
    "commits",
    "history",
    "attempts",
)
WEB_TABLES: Final = ("web_tokens", "web_audit", "web_requests")
"""Tables of the dashboard and the HTTP API, which exist after their first use."""
_LET_IN = [
    Grant("SELECT", "web_tokens", "serves the dashboard: checks tokens"),
    Grant("SELECT", "web_audit", "serves the dashboard: shows the audit"),
]
_LOOK = [
    Grant("SELECT", table, "checks whether the table exists, and reads it")
    for table in _EVERY_SYSTEM_TABLE
]
_CLAIM = (
    "available_at",
    "attempt_count",
    "consumer_id",
    "consumer_round",
    "claimed_at",
    "lease_expires_at",
    "last_attempt_at",
    "last_error",
    "last_traceback",
    "headers",
    "max_attempts",
)
_WAIT = ("parked_at", "blocks")
_CHANGE = "SELECT INSERT UPDATE DELETE"

GRANTS: Final[Mapping[str, Sequence[Grant]]] = {
    PUBLISHER: [
        *_LOOK,
        Grant("SELECT", LIVE, "returns the id of a published message; finds taken keys"),
        Grant("INSERT", LIVE, "publishes, also through topics and schedules"),
        Grant("UPDATE", LIVE, "locks the message with a key, writes nothing", ("last_error",)),
        Grant("UPDATE", WAITING, "takes over the key of a claimed message", (KEY_RELEASED,)),
        Grant("USAGE", SEQUENCE, "numbers new messages"),
        Grant("SELECT", ARCHIVE, "counts finished messages, without reading them", ("outcome",)),
        Grant("SELECT", GROUPS, "sees how many messages a group has room for"),
        Grant("SELECT", KEYS, "finds keys that the dedup_window keeps taken"),
        Grant("UPDATE", KEYS, "locks such a key, writes nothing", ("expires_at",)),
        Grant(
            "UPDATE",
            "schedules",
            "records published times of schedules",
            ("last_runs", "next_at", "revision"),
        ),
        Grant(
            "UPDATE",
            "queues",
            "notes that a queue has messages that expire",
            ("expiring_since", "schema_release"),
        ),
        Grant("INSERT", "history", "records the activity of each minute"),
        Grant("SELECT", REPLIES, "reads the reply to a request"),
        Grant("DELETE", REPLIES, "removes the reply to a request"),
    ],
    CONSUMER: [
        *_LOOK,
        *_rights("consumers", "INSERT UPDATE DELETE", "registers, its heartbeat, and the reaper"),
        *_rights("kinds", "INSERT DELETE", "stores which kinds it can read"),
        *_rights("consumer_rounds", "INSERT UPDATE DELETE", "rounds of durable consumers (Spark)"),
        Grant(
            "UPDATE",
            "queues",
            "counts dead letters that are not archived; notes whether a queue is in use",
            ("discarded_count", "orphaned_at", "used_at"),
        ),
        *_rights("history", "INSERT DELETE", "records the activity of each minute; prunes"),
        *_rights("attempts", "INSERT DELETE", "records failed attempts; the reaper prunes"),
        Grant("SELECT", LIVE, "claims and reads messages"),
        Grant("UPDATE", LIVE, "claims, extends, releases; also the reaper", _CLAIM),
        Grant("DELETE", LIVE, "acks, takes, dead-letters"),
        Grant("UPDATE", GROUPED, "lets messages wait for others of their group", _WAIT),
        *_rights(GROUPS, _CHANGE, "claims messages of a group by its row; the reaper"),
        *_rights(LIMITS, _CHANGE, "claims messages within the limits of a queue; the reaper"),
        Grant("SELECT", ARCHIVE, "the reaper finds messages past their archive_ttl"),
        Grant("INSERT", ARCHIVE, "keeps finished messages"),
        Grant("UPDATE", ARCHIVE, "the reaper tells errors apart", ("error_fingerprint",)),
        Grant("DELETE", ARCHIVE, "the reaper prunes the archive"),
        *_rights(
            KEYS, "SELECT INSERT DELETE", "stores keys of finished messages, deletes old ones"
        ),
        Grant("SELECT", REPLIES, "returns the id of a reply; the reaper finds lost claims"),
        Grant("INSERT", REPLIES, "replies to requests"),
        Grant("UPDATE", REPLIES, "locks an existing reply; the reaper", _CLAIM),
        Grant("DELETE", REPLIES, "the reaper"),
        Grant("USAGE", REPLY_SEQUENCE, "numbers replies"),
    ],
    OPERATOR: [
        *_LOOK,
        *[
            grant
            for table in _EVERY_SYSTEM_TABLE
            for grant in _rights(
                table, "INSERT UPDATE DELETE", "settings, pauses, topics, schedules, consumers"
            )
        ],
        *_rights(LIVE, _CHANGE, "edits, purges, requeues; everything that other roles may do"),
        Grant("USAGE", SEQUENCE, "numbers requeued messages"),
        *_rights(REPLIES, _CHANGE, "the same for replies"),
        Grant("USAGE", REPLY_SEQUENCE, "numbers replies"),
        *_rights(ARCHIVE, _CHANGE, "requeues, prunes"),
        *_rights(KEYS, _CHANGE, "publishes and ends messages with a key"),
        *_rights(GROUPS, _CHANGE, "pauses and configures groups; claims"),
        *_rights(LIMITS, _CHANGE, "changes the limits of a queue; claims"),
        *_LET_IN,
        Grant("UPDATE", "web_tokens", "ends sessions", ("session_version",)),
        Grant("INSERT", "web_audit", "serves the dashboard: writes the audit"),
        Grant("DELETE", "web_audit", "prunes the audit"),
        *_rights("web_requests", _CHANGE, "serves the HTTP API: keeps each Idempotency-Key"),
    ],
    VIEWER: [
        *_LOOK,
        Grant("SELECT", LIVE, "lists, searches and counts messages, payloads included"),
        Grant("SELECT", REPLIES, "lists replies"),
        Grant("SELECT", ARCHIVE, "lists and searches finished messages"),
        Grant("SELECT", KEYS, "finds taken keys"),
        Grant("SELECT", GROUPS, "lists groups"),
        Grant("SELECT", LIMITS, "sees whether a limit of a queue is reached"),
        *_LET_IN,
    ],
}
"""The rights of each role; found by running the verbs with a login that only has the role."""

ROUTINES: Final[Mapping[str, str]] = {
    "put_message_in_queue": PUBLISHER,
    "put_message_in_group": PUBLISHER,
    "put_messages_in_queue": PUBLISHER,
    "get_message_from_queue": CONSUMER,
    "get_messages_from_queue": CONSUMER,
    "ack_message": CONSUMER,
    "ack_messages": CONSUMER,
    "nack_message": CONSUMER,
    "release_message": CONSUMER,
    "reject_message": CONSUMER,
    "extend_message": CONSUMER,
    "delete_message_from_queue": OPERATOR,
}
"""Which roles besides the operator may execute a routine of the SQL API."""


@dataclasses.dataclass(frozen=True)
class Place:
    """What the statements need to know about the database.

    Attributes:
        routines: the engine's word for stored routines, as ``Features.routines``.
        schema: the schema of the tables; None for that of the connection.
        tables: the shared tables and those of the chosen queues, by role: each table's name and its
            name in ``GRANTS``.
        callables: routines of the SQL API: their names in ``ROUTINES`` and in GRANT statements.
    """

    routines: str | None
    schema: str | None
    tables: Sequence[tuple[str, str]]
    callables: Sequence[tuple[str, str]] = ()


def tables_of(
    prefix: str,
    queues: Iterable[str],
    reply_queues: Iterable[str],
    remembering: Iterable[str] = (),
    web: Iterable[str] = (),
    *,
    grouped: Iterable[str] = (),
    limited: Iterable[str] = (),
    waiting: Iterable[str] = (),
) -> list[tuple[str, str]]:
    """The tables of ``Place``.

    ``remembering`` are the queues that have a ``dedup_window``, ``grouped`` those with groups,
    ``limited`` those with limits of their own, ``waiting`` those with ``unique="waiting"``; ``web``
    are the existing ones of ``WEB_TABLES``.
    """
    found = [(SYSTEM_PREFIX + table, table) for table in (*_EVERY_SYSTEM_TABLE, *web)]
    replies = dict.fromkeys(reply_queues)
    for queue in dict.fromkeys([*queues, *replies]):
        base = prefix + queue
        sorts = (REPLIES, REPLY_SEQUENCE) if queue in replies else (LIVE, SEQUENCE)
        found += [(base, sorts[0]), (f"{base}_id_seq", sorts[1]), (f"{base}_archive", ARCHIVE)]
    for queue in grouped:
        found += [(prefix + queue, GROUPED), (f"{prefix}{queue}_groups", GROUPS)]
    found += [(f"{prefix}{queue}_limits", LIMITS) for queue in limited]
    found += [(prefix + queue, WAITING) for queue in waiting]
    return [*found, *[(f"{prefix}{queue}_dedup_keys", KEYS) for queue in remembering]]


def statements(place: Place, prefix: str = DEFAULT_PREFIX) -> list[str]:
    """The statements that create the roles and grant their rights; each may be repeated.

    Raises:
        UnsupportedByEngine: this engine has no such roles.
    """
    return _writer(place, prefix).all()


def regrants(place: Place, prefix: str) -> list[str]:
    """The statements that grant existing roles their rights on tables and routines.

    Raises:
        UnsupportedByEngine: this engine has no such roles.
    """
    return _writer(place, prefix).rights()


def _writer(place: Place, prefix: str) -> _Writer:
    writer = _WRITERS.get(place.routines)
    if writer is None:
        msg = (
            "Roles are available on PostgreSQL, MySQL and MariaDB. On SQLite use the permissions "
            "of the file; on H2 create users and grants by hand. See docs/roles.md."
        )
        raise UnsupportedByEngine(msg)
    return writer(place, prefix)


class _Writer:
    """Writes the statements for PostgreSQL."""

    def __init__(self, place: Place, prefix: str) -> None:
        self._place = place
        self._prefix = prefix

    def all(self) -> list[str]:
        names = [self._prefix + role for role in ROLES]
        admitted = [statement for name in names for statement in self.admit(name)]
        return [*map(self.create, names), *admitted, *self.rights()]

    def rights(self) -> list[str]:
        written: list[str] = []
        for role in ROLES:
            for table, known_as in self._place.tables:
                rights = [grant for grant in GRANTS[role] if grant.table == known_as]
                if rights:
                    written += self.grant(rights, table, self._prefix + role)
        for name, routine in self._place.callables:
            for role in (ROUTINES[name], OPERATOR):
                statement = f"GRANT EXECUTE ON {routine} TO {self._prefix + role}"
                if statement not in written:
                    written.append(statement)
        return written

    def create(self, role: str) -> str:
        # There is no CREATE ROLE IF NOT EXISTS.
        return (
            f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') "
            f"THEN CREATE ROLE {role} NOLOGIN; END IF; END $$"
        )

    def admit(self, role: str) -> list[str]:
        schema = self._place.schema
        return [] if schema is None else [f"GRANT USAGE ON SCHEMA {self.quoted(schema)} TO {role}"]

    def grant(self, rights: Sequence[Grant], table: str, role: str) -> list[str]:
        sort = "SEQUENCE" if rights[0].right == "USAGE" else "TABLE"
        listed = ", ".join(grant.text for grant in rights)
        return [f"GRANT {listed} ON {sort} {self.named(table)} TO {role}"]

    def named(self, table: str) -> str:
        schema = self._place.schema
        return table if schema is None else f"{self.quoted(schema)}.{table}"

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'


class _MySQLWriter(_Writer):
    def create(self, role: str) -> str:
        return f"CREATE ROLE IF NOT EXISTS {role}"

    def admit(self, role: str) -> list[str]:  # noqa: ARG002 - a schema takes no right here
        return []

    def grant(self, rights: Sequence[Grant], table: str, role: str) -> list[str]:
        # The table itself numbers its rows.
        return [] if rights[0].right == "USAGE" else super().grant(rights, table, role)

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"


_WRITERS: Final[Mapping[str | None, type[_Writer]]] = {"plpgsql": _Writer, "psm": _MySQLWriter}


# ---------------------------------------------------------------- errors of missing rights

_DDL = re.compile(r"\s*(CREATE|ALTER|DROP|COMMENT)\b", re.IGNORECASE)
# Locking a row needs the right to update one of its columns.
_LOCK = re.compile(r"\bFOR (?:NO KEY )?(?:UPDATE|SHARE)\b|\bFOR KEY SHARE\b|\bLOCK IN SHARE\b")
_DERIVED = re.compile(
    r"_(id_seq|(claim|lease|archive|archive_err|dedup_keys|group|group_held|c\d+)_ix)\Z"
)


def not_permitted(prefix: str, refusal: str, statement: str) -> NotPermitted:
    """The error for a missing right, with the needed rights and the roles that have them.

    Args:
        prefix: of the tables of queues.
        refusal: the server's message.
        statement: the refused statement.
    """
    ddl = _DDL.match(statement)
    table = _table_in(prefix, refusal, statement)
    if ddl is not None:
        text = (
            f"{refusal} None of the roles may create, alter or drop tables. Do it once with a "
            "login that may (such as with queue-over-sql create or migrate), then run "
            "queue-over-sql roles install. Nothing was changed."
        )
        return NotPermitted(text, table, [ddl[1].upper()])
    if table is None:
        return NotPermitted(f"{refusal} See docs/roles.md. Nothing was changed.")
    needed = _needed(table, statement)
    rights = [grant.text for grant in needed]
    known_as = _sort_of(prefix, table)
    roles = [role for role in ROLES if all(_has(role, known_as, grant) for grant in needed)]
    text = (
        f"{refusal} This requires {', '.join(rights)} on {table}, which {_listed(roles)}. Grant "
        "the login such a role. If it already has the role, run queue-over-sql roles install to "
        "update the role's rights; see docs/roles.md. Nothing was changed."
    )
    return NotPermitted(text, table, [grant.right for grant in needed], roles)


def _listed(roles: Sequence[str]) -> str:
    if not roles:
        return "none of the roles has"
    if len(roles) == 1:
        return f"the role {roles[0]} has"
    return f"the roles {', '.join(roles[:-1])} and {roles[-1]} have"


def _table_in(prefix: str, refusal: str, statement: str) -> str | None:
    ours = re.compile(rf"(?<![A-Za-z0-9_])(?:{SYSTEM_PREFIX}|{re.escape(prefix)})\w+")
    used = dict.fromkeys(_DERIVED.sub("", name) for name in ours.findall(statement))
    refused = [_DERIVED.sub("", name) for name in ours.findall(refusal)]
    return next((name for name in refused if name in used), next(iter(used), None))


def _sort_of(prefix: str, table: str) -> str:
    if table.startswith(SYSTEM_PREFIX):
        return table.removeprefix(SYSTEM_PREFIX)
    for sort in (ARCHIVE, KEYS, GROUPS, LIMITS):
        if table.endswith(sort.removeprefix(LIVE)) and table.startswith(prefix):
            return sort
    return LIVE


def _needed(table: str, statement: str) -> list[Grant]:
    named = rf"""[\w".`]*{table}["`]?(?![\w])"""

    def has(before: str) -> bool:
        return re.search(before + named, statement, re.IGNORECASE) is not None

    needed = []
    if has(r"\b(?:INTO|COPY)\s+"):
        needed.append(Grant("INSERT", table, ""))
    if has(r"(?<!FOR )\bUPDATE\s+"):
        assigned = re.search(r"\bSET\s+(.*?)(?:\s+WHERE\b|\s+FROM\b|\Z)", statement, re.DOTALL)
        columns = re.findall(r"(?:^|[\s,.])[\"`]?(\w+)[\"`]?\s*=", assigned[1] if assigned else "")
        needed.append(Grant("UPDATE", table, "", tuple(dict.fromkeys(columns))))
    if has(r"\bDELETE\s+(?:\w+\s+)?FROM\s+"):
        needed.append(Grant("DELETE", table, ""))
    if not needed and _LOCK.search(statement):
        return [Grant("UPDATE", table, "lock")]
    return needed or [Grant("SELECT", table, "")]


def _has(role: str, sort: str, needed: Grant) -> bool:
    sorts = {sort, GROUPED, WAITING} if sort == LIVE else {sort}
    given = [g for g in GRANTS[role] if g.table in sorts and g.right == needed.right]
    if not given or needed.why or not all(grant.columns for grant in given):
        return bool(given)
    return set(needed.columns or "*") <= {name for grant in given for name in grant.columns}
