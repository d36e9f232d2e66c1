"""The door to the core, for packages that are built on it: the dashboard, Spark, test helpers.

A guest imports public names (``from queue_over_sql import …``), ``queue_over_sql.errors``, what is
here, ``queue_over_sql.values``, and public names of other guests; nothing else. It works by
operations: functions that get an SQLAlchemy ``Connection`` and send their statements on it. ::

    from sqlalchemy import func, select

    from queue_over_sql import QueueService, inside


    def claimed(service: QueueService, name: str) -> int:
        tables = inside.tables(service.queue(name))
        held = tables.expressions.is_claimed(tables.live)
        count = select(func.count()).select_from(tables.live).where(held)
        return inside.read(service, lambda c: c.execute(count).scalar_one(), timeout=5.0)

Its leaves are for fewer guests: ``inside.columns`` (Arrow, staged writes), ``inside.streams``,
``inside.exports``, ``inside.workers``, ``inside.databases``, ``inside.sql``, ``inside.aio`` and
``inside.testing``.

Stability: names and arguments here stay for the releases of one minor version, and a change is in
the changelog. Objects that they return have further attributes, which may change at any time: rely
on the documented ones. Users of queues need none of this.
"""

from typing import TYPE_CHECKING

from queue_over_sql.archive.errors import ErrorGroup
from queue_over_sql.database.runtime import Condition
from queue_over_sql.inside.claims import Arrivals, ClientClaims, poll_pauses
from queue_over_sql.inside.inspection import Inspection, QueueSnapshot, within
from queue_over_sql.inside.messages import (
    check_payload,
    errors,
    errors_left_out,
    having_error,
    is_refused,
    last_error_at,
    page,
    pages,
    prune,
    requeued_as,
    restore,
    rows,
)
from queue_over_sql.inside.operations import (
    EngineFacts,
    RecordedSettings,
    asks_no_more,
    condition,
    create_tables,
    engine,
    extent,
    forget_consumer,
    group_counts,
    handlers_connection,
    has_status,
    insert_unless_there,
    is_alive,
    is_disconnect,
    known_settings,
    limited,
    now,
    opened,
    read,
    read_clock,
    record,
    records,
    run,
    settings,
    settings_of,
    start,
    stays,
    subtractable,
    system,
    tables,
    transaction,
    wake_consumers,
    was_cancelled,
)
from queue_over_sql.inside.vitals import HandlersAtWork, Loop, Vitals
from queue_over_sql.message import row_of
from queue_over_sql.payloads.codec import encode
from queue_over_sql.queues.registry import QueueRecord
from queue_over_sql.schedules.calendar import NICKNAMES, Missed, zone_named
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.schema.system_tables import SystemTables
from queue_over_sql.service import start_to_serve
from queue_over_sql.sql.checkup import Section
from queue_over_sql.topics.routing import check_routing_text, pattern_fits, payload_fits

if TYPE_CHECKING:
    from queue_over_sql.message import CallersConnection as CallersConnection

__all__ = [
    "NICKNAMES",
    "Arrivals",
    "ClientClaims",
    "Condition",
    "EngineFacts",
    "ErrorGroup",
    "HandlersAtWork",
    "Inspection",
    "Loop",
    "Missed",
    "QueueRecord",
    "QueueSnapshot",
    "QueueTables",
    "RecordedSettings",
    "Section",
    "SystemTables",
    "Vitals",
    "asks_no_more",
    "check_payload",
    "check_routing_text",
    "condition",
    "create_tables",
    "encode",
    "engine",
    "errors",
    "errors_left_out",
    "extent",
    "forget_consumer",
    "group_counts",
    "handlers_connection",
    "has_status",
    "having_error",
    "insert_unless_there",
    "is_alive",
    "is_disconnect",
    "is_refused",
    "known_settings",
    "last_error_at",
    "limited",
    "now",
    "opened",
    "page",
    "pages",
    "pattern_fits",
    "payload_fits",
    "poll_pauses",
    "prune",
    "read",
    "read_clock",
    "record",
    "records",
    "requeued_as",
    "restore",
    "row_of",
    "rows",
    "run",
    "settings",
    "settings_of",
    "start",
    "start_to_serve",
    "stays",
    "subtractable",
    "system",
    "tables",
    "transaction",
    "wake_consumers",
    "was_cancelled",
    "within",
    "zone_named",
]
