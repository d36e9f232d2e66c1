"""The system tables: what all queues of a service share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

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

if TYPE_CHECKING:
    from queue_over_sql.schema.dialect import SqlDialect


KEY_LENGTH: Final = 200
KIND_LENGTH: Final = 100
CONSUMER_LENGTH: Final = 36
PREFIX_LENGTH: Final = 20
NAME_LENGTH: Final = 40
SCHEDULE_LENGTH: Final = 200
PATTERN_LENGTH: Final = 255
OWNER_LENGTH: Final = 255
WRITER_LENGTH: Final = 100


@dataclasses.dataclass(frozen=True, eq=False)
class SystemTables:
    """The tables that all queues of a service share.

    Attributes:
        metadata: of all of them.
        queues: which queues there are, with their settings.
        consumers: who is registered, with the last heartbeat.
        rounds: what durable consumers have opened and not acknowledged.
        kinds: which kinds of messages each consumer can read.
        schedules: messages that come again and again.
        topics: what messages are published to for several queues at once.
        subscriptions: which queues get which messages of a topic.
        stages: tables with messages that wait to be published together.
        commits: which batches were published, so that none is a second time.
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

    @property
    def all(self) -> tuple[Table, ...]:
        """All of them, in the order in which they are created."""
        return (
            self.queues,
            self.consumers,
            self.rounds,
            self.kinds,
            self.schedules,
            self.topics,
            self.subscriptions,
            self.stages,
            self.commits,
        )


def system_tables(dialect: SqlDialect, schema: str | None) -> SystemTables:
    """Define the shared tables."""
    metadata = MetaData(schema=schema)
    return SystemTables(
        metadata,
        _queues(metadata, dialect),
        _consumers(metadata, dialect),
        _rounds(metadata, dialect),
        _kinds(metadata, dialect),
        _schedules(metadata, dialect),
        _topics(metadata, dialect),
        _subscriptions(metadata, dialect),
        _stages(metadata, dialect),
        _commits(metadata, dialect),
    )


def _queues(metadata: MetaData, dialect: SqlDialect) -> Table:
    name = dialect.exact_string
    return Table(
        "queue_over_sql_queues",
        metadata,
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("name", name(NAME_LENGTH), nullable=False),
        Column("settings", Text, nullable=False),
        Column("paused_at", BigInteger),
        Column("discarded_count", BigInteger, nullable=False, server_default="0"),
        Column("edit_count", BigInteger, nullable=False, server_default="0"),
        # The consumer that a temporary queue belongs to; NULL for a queue that stays.
        Column("owner_id", name(36)),
        Column("schema_version", Integer, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("table_prefix", "name"),
        **dialect.table_options,
    )


def _consumers(metadata: MetaData, dialect: SqlDialect) -> Table:
    name = dialect.exact_string
    return Table(
        "queue_over_sql_consumers",
        metadata,
        Column("consumer_id", name(CONSUMER_LENGTH), primary_key=True),
        Column("name", name(200), nullable=False),
        Column("host", name(255), nullable=False),
        Column("pid", Integer, nullable=False),
        Column("started_at", BigInteger, nullable=False),
        Column("heartbeat_at", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        # A durable consumer outlives its process; the others leave the columns below empty.
        Column("durable", SmallInteger, nullable=False, server_default="0"),
        Column("table_prefix", name(PREFIX_LENGTH)),
        Column("queue", name(NAME_LENGTH)),
        Column("epoch", BigInteger),
        Column("claimed_round", BigInteger),
        Column("acked_round", BigInteger),
        Column("owner", name(OWNER_LENGTH)),
        **dialect.table_options,
    )


def _rounds(metadata: MetaData, dialect: SqlDialect) -> Table:
    return Table(
        "queue_over_sql_consumer_rounds",
        metadata,
        Column("consumer_id", dialect.exact_string(CONSUMER_LENGTH), nullable=False),
        Column("consumer_round", BigInteger, nullable=False),
        Column("message_limit", BigInteger, nullable=False),
        Column("up_to_id", BigInteger),
        Column("due_by", BigInteger),
        # NULL until it is claimed, which happens once: then it is what was stamped, even if 0.
        Column("claimed_count", BigInteger),
        PrimaryKeyConstraint("consumer_id", "consumer_round"),
        **dialect.table_options,
    )


def _kinds(metadata: MetaData, dialect: SqlDialect) -> Table:
    name = dialect.exact_string
    return Table(
        "queue_over_sql_kinds",
        metadata,
        Column("consumer_id", name(CONSUMER_LENGTH), nullable=False),
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        Column("kind", name(KIND_LENGTH), nullable=False),
        PrimaryKeyConstraint("consumer_id", "table_prefix", "queue", "kind"),
        **dialect.table_options,
    )


def _schedules(metadata: MetaData, dialect: SqlDialect) -> Table:
    name = dialect.exact_string
    return Table(
        "queue_over_sql_schedules",
        metadata,
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("name", name(SCHEDULE_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        # JSON: trigger, payload and options. As large as a payload may be.
        Column("definition", dialect.payload_type("text"), nullable=False),
        # The next instant that has no message yet; NULL when none will ever come.
        Column("next_at", BigInteger),
        Column("revision", BigInteger, nullable=False, server_default="0"),
        Column("paused_at", BigInteger),
        Column("created_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("table_prefix", "name"),
        **dialect.table_options,
    )


def _topics(metadata: MetaData, dialect: SqlDialect) -> Table:
    name = dialect.exact_string
    return Table(
        "queue_over_sql_topics",
        metadata,
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("name", name(NAME_LENGTH), nullable=False),
        Column("created_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("table_prefix", "name"),
        **dialect.table_options,
    )


def _subscriptions(metadata: MetaData, dialect: SqlDialect) -> Table:
    name = dialect.exact_string
    return Table(
        "queue_over_sql_subscriptions",
        metadata,
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("topic", name(NAME_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        Column("pattern", name(PATTERN_LENGTH), nullable=False),
        # JSON: the fields of the payload that must fit; NULL for any payload.
        Column("filter", dialect.payload_type("text")),
        Column("created_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("table_prefix", "topic", "queue", "pattern"),
        **dialect.table_options,
    )


def _stages(metadata: MetaData, dialect: SqlDialect) -> Table:
    name = dialect.exact_string
    return Table(
        "queue_over_sql_stages",
        metadata,
        # Of a table in the same schema.
        Column("name", name(NAME_LENGTH), primary_key=True),
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        Column("writer_id", name(WRITER_LENGTH), nullable=False),
        Column("batch_id", BigInteger, nullable=False),
        # NULL until all of its messages are there.
        Column("message_count", BigInteger),
        Column("created_at", BigInteger, nullable=False),
        # From then on nobody publishes it any more.
        Column("expires_at", BigInteger, nullable=False),
        **dialect.table_options,
    )


def _commits(metadata: MetaData, dialect: SqlDialect) -> Table:
    name = dialect.exact_string
    return Table(
        "queue_over_sql_commits",
        metadata,
        Column("table_prefix", name(PREFIX_LENGTH), nullable=False),
        Column("queue", name(NAME_LENGTH), nullable=False),
        Column("writer_id", name(WRITER_LENGTH), nullable=False),
        Column("batch_id", BigInteger, nullable=False),
        # -1 for a batch as a whole, from 0 on for one part of it.
        Column("part", BigInteger, nullable=False),
        Column("message_count", BigInteger, nullable=False),
        Column("committed_at", BigInteger, nullable=False),
        # NULL while its batch may still come a second time.
        Column("expires_at", BigInteger),
        PrimaryKeyConstraint("table_prefix", "queue", "writer_id", "batch_id", "part"),
        Index("queue_over_sql_commits_ix", "expires_at"),
        **dialect.table_options,
    )
