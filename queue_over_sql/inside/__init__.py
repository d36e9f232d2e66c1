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

``inside.columns`` moves messages as Arrow columns, ``inside.streams`` serves streaming engines;
both need PyArrow. ``inside.sql`` has the statements of a queue's operations as text.

Stability: names and arguments here stay for the releases of one minor version, and a change is in
the changelog. Objects that they return have further attributes, which may change at any time: rely
on the documented ones. Users of queues need none of this.
"""

from queue_over_sql.database.runtime import Condition as Condition
from queue_over_sql.inside.inspection import Inspection as Inspection
from queue_over_sql.inside.inspection import QueueLook as QueueLook
from queue_over_sql.inside.inspection import within as within
from queue_over_sql.inside.operations import EngineFacts as EngineFacts
from queue_over_sql.inside.operations import announce as announce
from queue_over_sql.inside.operations import condition as condition
from queue_over_sql.inside.operations import create_tables as create_tables
from queue_over_sql.inside.operations import engine as engine
from queue_over_sql.inside.operations import extent as extent
from queue_over_sql.inside.operations import has_status as has_status
from queue_over_sql.inside.operations import lending as lending
from queue_over_sql.inside.operations import limited as limited
from queue_over_sql.inside.operations import now as now
from queue_over_sql.inside.operations import opened as opened
from queue_over_sql.inside.operations import read as read
from queue_over_sql.inside.operations import read_clock as read_clock
from queue_over_sql.inside.operations import run as run
from queue_over_sql.inside.operations import settings as settings
from queue_over_sql.inside.operations import start as start
from queue_over_sql.inside.operations import subtractable as subtractable
from queue_over_sql.inside.operations import system as system
from queue_over_sql.inside.operations import tables as tables
from queue_over_sql.inside.operations import transaction as transaction
from queue_over_sql.inside.operations import was_cancelled as was_cancelled
from queue_over_sql.inside.vitals import HandlersAtWork as HandlersAtWork
from queue_over_sql.inside.vitals import Loop as Loop
from queue_over_sql.inside.vitals import Vitals as Vitals
from queue_over_sql.queues.registry import QueueRecord as QueueRecord
from queue_over_sql.schema.existing import ADDED_COLUMNS as ADDED_COLUMNS
from queue_over_sql.schema.queue_tables import QueueTables as QueueTables
from queue_over_sql.schema.system_tables import SystemTables as SystemTables
from queue_over_sql.sql.checkup import Section as Section
