"""The door to the core, for packages that are built on it: the dashboard, Spark, test helpers.

A guest imports public names (``from queue_over_sql import …``), ``queue_over_sql.errors``, what is
here, ``queue_over_sql.values``, and public names of other guests; nothing else. It works by
operations: functions that get an SQLAlchemy ``Connection`` and send their statements on it. ::

    from sqlalchemy import func, select

    from queue_over_sql import QueueService, inside


    def claimed(service: QueueService, name: str) -> int:
        tables = inside.tables(service.queue(name))
        held = tables.dialect.is_claimed(tables.live)
        count = select(func.count()).select_from(tables.live).where(held)
        return inside.read(service, lambda c: c.execute(count).scalar_one(), timeout=5.0)

It has four leaves: ``inside.streams`` for streaming engines, ``inside.columns`` for messages as
Arrow columns, ``inside.aio`` for an event loop, ``inside.sql`` for the statements as text.

Stability: names and arguments here stay for the releases of one minor version, and a change is in
the changelog. Objects that they return have further attributes, which may change at any time: rely
on the documented ones. Users of queues need none of this.
"""

from typing import TYPE_CHECKING

from queue_over_sql.archive.archive import ArchiveHistory
from queue_over_sql.consumers.consumer import host_name
from queue_over_sql.database.runtime import Condition
from queue_over_sql.database.urls import insist_on_file, read_url, shown_place
from queue_over_sql.dialects.engines import routines_of, with_driver
from queue_over_sql.inside.inspection import Inspection, QueueLook, within
from queue_over_sql.inside.messages import (
    archive_history,
    last_id,
    page,
    pages,
    probe_ids,
    prune,
    requeued_as,
    restore,
    rows,
)
from queue_over_sql.inside.operations import (
    EngineFacts,
    RecordedSettings,
    announce,
    condition,
    create_tables,
    engine,
    extent,
    forget_consumer,
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
    replace_clock,
    run,
    settings,
    settings_of,
    start,
    subtractable,
    system,
    system_table_names,
    tables,
    transaction,
    was_cancelled,
)
from queue_over_sql.inside.vitals import HandlersAtWork, Loop, Vitals
from queue_over_sql.inside.work import handler_run, handlers
from queue_over_sql.message import row_of
from queue_over_sql.payloads.codec import encode
from queue_over_sql.queues.registry import QueueRecord
from queue_over_sql.roles.roles import rights_for
from queue_over_sql.schedules.calendar import Missed, zone_named
from queue_over_sql.schema.existing import ADDED_COLUMNS
from queue_over_sql.schema.queue_tables import QueueTables, check_table_prefix
from queue_over_sql.schema.system_tables import SystemTables
from queue_over_sql.service import start_to_serve
from queue_over_sql.settling.failures import reason_of
from queue_over_sql.sql.checkup import Section
from queue_over_sql.topics.routing import check_routing_text, pattern_fits, payload_fits
from queue_over_sql.values.texts import hide_passwords
from queue_over_sql.worker.handler import Handler, check_kind, refuse_unfinished
from queue_over_sql.worker.lease_renewal import LeaseKeeper
from queue_over_sql.worker.processes import Supervisor, obey_supervisor, unblock_signals
from queue_over_sql.worker.source_files import SourceFiles
from queue_over_sql.worker.worker import narrow, stop_at_once

if TYPE_CHECKING:
    from queue_over_sql.message import CallersConnection as CallersConnection

__all__ = [
    "ADDED_COLUMNS",
    "ArchiveHistory",
    "Condition",
    "EngineFacts",
    "Handler",
    "HandlersAtWork",
    "Inspection",
    "LeaseKeeper",
    "Loop",
    "Missed",
    "QueueLook",
    "QueueRecord",
    "QueueTables",
    "RecordedSettings",
    "Section",
    "SourceFiles",
    "Supervisor",
    "SystemTables",
    "Vitals",
    "announce",
    "archive_history",
    "check_kind",
    "check_routing_text",
    "check_table_prefix",
    "condition",
    "create_tables",
    "encode",
    "engine",
    "extent",
    "forget_consumer",
    "handler_run",
    "handlers",
    "handlers_connection",
    "has_status",
    "hide_passwords",
    "host_name",
    "insert_unless_there",
    "insist_on_file",
    "is_alive",
    "is_disconnect",
    "known_settings",
    "last_id",
    "limited",
    "narrow",
    "now",
    "obey_supervisor",
    "opened",
    "page",
    "pages",
    "pattern_fits",
    "payload_fits",
    "probe_ids",
    "prune",
    "read",
    "read_clock",
    "read_url",
    "reason_of",
    "record",
    "records",
    "refuse_unfinished",
    "replace_clock",
    "requeued_as",
    "restore",
    "rights_for",
    "routines_of",
    "row_of",
    "rows",
    "run",
    "settings",
    "settings_of",
    "shown_place",
    "start",
    "start_to_serve",
    "stop_at_once",
    "subtractable",
    "system",
    "system_table_names",
    "tables",
    "transaction",
    "unblock_signals",
    "was_cancelled",
    "with_driver",
    "within",
    "zone_named",
]
