"""The shared tables, which all queues of a service use."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
)

from queue_over_sql.values.limits import (
    CONSUMER_LENGTH,
    HANDLES_LENGTH,
    HISTORY_COUNTS,
    KIND_LENGTH,
    NAME_LENGTH,
    OWNER_LENGTH,
    PATTERN_LENGTH,
    PREFIX_LENGTH,
    SCHEDULE_LENGTH,
    TITLE_LENGTH,
    TOKEN_KEY_LENGTH,
    WRITER_LENGTH,
)

if TYPE_CHECKING:
    from sqlalchemy.schema import SchemaItem

    from queue_over_sql.sql.expressions import Expressions


@dataclasses.dataclass(frozen=True, eq=False)
class SystemTables:
    """The tables that all queues of a service share.

    Attributes:
        metadata: of all these tables.
        queues: the queues and their settings.
        consumers: the registered consumers, with their last heartbeats.
        rounds: rounds of durable consumers that are open and not acknowledged.
        kinds: the kinds of messages that each consumer can read.
        schedules: the schedules.
        topics: the topics.
        subscriptions: the subscriptions of queues to topics.
        stages: the tables of staged writes.
        commits: the published batches of staged writes, so that none is published twice.
        history: counts by process, queue and minute.
        attempts: failed attempts by message.
    """

    metadata: MetaData
    queues: Table
    consumers: Table
    rounds: Table
    kinds: Table
    schedules: Table
    topics: Table
    subscriptions: Table
    stages: Table
    commits: Table
    history: Table
    attempts: Table

    @property
    def all(self) -> tuple[Table, ...]:
        """All of them, in the order of their creation."""
        return tuple(self.metadata.tables.values())


def system_tables(expressions: Expressions, schema: str | None) -> SystemTables:
    """Define the shared tables."""
    metadata = MetaData(schema=schema)

    def table(name: str, items: list[SchemaItem]) -> Table:
        return Table(f"queue_over_sql_{name}", metadata, *items, **expressions.table_options)

    return SystemTables(
        metadata,
        table("queues", _queues(expressions)),
        table("consumers", _consumers(expressions)),
        table("consumer_rounds", _rounds(expressions)),
        table("kinds", _kinds(expressions)),
        table("schedules", _schedules(expressions)),
        table("topics", _topics(expressions)),
        table("subscriptions", _subscriptions(expressions)),
        table("stages", _stages(expressions)),
        table("commits", _commits(expressions)),
        table("history", _history(expressions)),
        table("attempts", _attempts(expressions)),
    )


def _queues(expressions: Expressions) -> list[SchemaItem]:
    name = expressions.exact_string
    return [
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("name", name(NAME_LENGTH), nullable=False),
        Column("settings", Text, nullable=False),
        Column("paused_at", BigInteger),
        Column("discarded_count", BigInteger, nullable=False, server_default="0"),
        Column("edit_count", BigInteger, nullable=False, server_default="0"),
        # The consumer that a temporary queue belongs to; NULL for other queues.
        Column("owner_id", name(36)),
        Column("schema_version", Integer, nullable=False),
        # JSON: the release that made that version, and the oldest compatible version. NULL for
        # queues of the first release.
        Column("schema_release", Text),
        Column("created_at", BigInteger, nullable=False),
        # Since when a message of it may expire.
        Column("expiring_since", BigInteger),
        # Since when its messages may have groups; NULL: they have none.
        Column("groups_at", BigInteger),
        # When it was last in use, nearly; NULL: it is not dropped if nobody uses it.
        Column("used_at", BigInteger),
        # When a reaper first saw a temporary queue without its consumer; NULL: it has one.
        Column("orphaned_at", BigInteger),
        # What it was called when it was created, if its name was made of that.
        Column("title", name(TITLE_LENGTH)),
        PrimaryKeyConstraint("table_prefix", "name"),
    ]


def _consumers(expressions: Expressions) -> list[SchemaItem]:
    name = expressions.exact_string
    return [
        Column("consumer_id", name(CONSUMER_LENGTH), primary_key=True),
        Column("name", name(200), nullable=False),
        Column("host", name(255), nullable=False),
        Column("pid", Integer, nullable=False),
        Column("started_at", BigInteger, nullable=False),
        Column("heartbeat_at", BigInteger, nullable=False),
        # 1 and less: it is declared dead. 1 less n: and held n messages then.
        Column("expires_at", BigInteger, nullable=False),
        # What the tokens of its claims are signed with. NULL for consumers without tokens, as those
        # of earlier releases.
        Column("token_key", name(TOKEN_KEY_LENGTH)),
        # JSON: what it handles, as it said last. NULL: it has not said so yet.
        Column("handles", name(HANDLES_LENGTH)),
        # A durable consumer outlives its process; others leave the columns below empty.
        Column("durable", SmallInteger, nullable=False, server_default="0"),
        Column("table_prefix", name(PREFIX_LENGTH)),
        Column("queue", name(NAME_LENGTH)),
        Column("epoch", BigInteger),
        Column("claimed_round", BigInteger),
        Column("acked_round", BigInteger),
        Column("owner", name(OWNER_LENGTH)),
    ]


def _rounds(expressions: Expressions) -> list[SchemaItem]:
    return [
        Column("consumer_id", expressions.exact_string(CONSUMER_LENGTH), nullable=False),
        Column("consumer_round", BigInteger, nullable=False),
        Column("message_limit", BigInteger, nullable=False),
        Column("up_to_id", BigInteger),
        Column("due_by", BigInteger),
        # NULL until it is claimed, which happens once. Then the number of claimed messages, even if
        # 0.
        Column("claimed_count", BigInteger),
        PrimaryKeyConstraint("consumer_id", "consumer_round"),
    ]


def _kinds(expressions: Expressions) -> list[SchemaItem]:
    name = expressions.exact_string
    return [
        Column("consumer_id", name(CONSUMER_LENGTH), nullable=False),
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        Column("kind", name(KIND_LENGTH), nullable=False),
        PrimaryKeyConstraint("consumer_id", "table_prefix", "queue", "kind"),
    ]


def _schedules(expressions: Expressions) -> list[SchemaItem]:
    name = expressions.exact_string
    return [
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("name", name(SCHEDULE_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        # JSON: trigger, payload and options. It may be as large as a payload.
        Column("definition", expressions.payload_type("text"), nullable=False),
        # The first time that has no message yet; NULL if there is none.
        Column("next_at", BigInteger),
        Column("revision", BigInteger, nullable=False, server_default="0"),
        Column("paused_at", BigInteger),
        Column("created_at", BigInteger, nullable=False),
        # JSON: the times and the ids of the messages that it published last. NULL: none.
        Column("last_runs", Text),
        PrimaryKeyConstraint("table_prefix", "name"),
    ]


def _topics(expressions: Expressions) -> list[SchemaItem]:
    name = expressions.exact_string
    return [
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("name", name(NAME_LENGTH), nullable=False),
        Column("created_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("table_prefix", "name"),
    ]


def _subscriptions(expressions: Expressions) -> list[SchemaItem]:
    name = expressions.exact_string
    return [
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("topic", name(NAME_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        Column("pattern", name(PATTERN_LENGTH), nullable=False),
        # JSON: the fields that the payload must have; NULL for any payload.
        Column("filter", expressions.payload_type("text")),
        Column("created_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("table_prefix", "topic", "queue", "pattern"),
    ]


def _stages(expressions: Expressions) -> list[SchemaItem]:
    name = expressions.exact_string
    return [
        # A table in the same schema.
        Column("name", name(NAME_LENGTH), primary_key=True),
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        Column("writer_id", name(WRITER_LENGTH), nullable=False),
        Column("batch_id", BigInteger, nullable=False),
        # NULL until all of its messages are stored.
        Column("message_count", BigInteger),
        Column("created_at", BigInteger, nullable=False),
        # After this time nobody publishes it any more.
        Column("expires_at", BigInteger, nullable=False),
    ]


def _commits(expressions: Expressions) -> list[SchemaItem]:
    name = expressions.exact_string
    return [
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        Column("writer_id", name(WRITER_LENGTH), nullable=False),
        Column("batch_id", BigInteger, nullable=False),
        # -1 for a whole batch, 0 and more for its parts.
        Column("part", BigInteger, nullable=False),
        Column("message_count", BigInteger, nullable=False),
        Column("committed_at", BigInteger, nullable=False),
        # NULL while its batch may still be repeated.
        Column("expires_at", BigInteger),
        PrimaryKeyConstraint("table_prefix", "queue", "writer_id", "batch_id", "part"),
        Index("queue_over_sql_commits_ix", "expires_at"),
    ]


def _history(expressions: Expressions) -> list[SchemaItem]:
    name = expressions.exact_string
    return [
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        # Minutes since the epoch.
        Column("minute", BigInteger, nullable=False),
        Column("process", name(36), nullable=False),
        # An earlier release beside this one does not count all of them.
        *(
            Column(count, BigInteger, nullable=False, server_default="0")
            for count in HISTORY_COUNTS
        ),
        # Histograms as JSON lists; see observability/history.py.
        Column("waited", Text, nullable=False),
        Column("handled", Text, nullable=False),
        # By time first, because it is read and pruned by time.
        PrimaryKeyConstraint("table_prefix", "minute", "queue", "process"),
    ]


def _attempts(expressions: Expressions) -> list[SchemaItem]:
    name = expressions.exact_string
    return [
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        Column("message_id", BigInteger, nullable=False),
        # Two attempts of a message can have the same number, because it may begin anew.
        Column("ended_at", BigInteger, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("began_at", BigInteger),
        Column("outcome", name(20), nullable=False),
        Column("consumer_id", name(CONSUMER_LENGTH), nullable=False),
        # As in the registration of the consumer; NULL if that was gone.
        Column("worker", name(200)),
        Column("host", name(255)),
        Column("pid", Integer),
        Column("error", Text),
        Column("traceback", Text),
        PrimaryKeyConstraint("table_prefix", "queue", "message_id", "ended_at", "attempt"),
    ]
