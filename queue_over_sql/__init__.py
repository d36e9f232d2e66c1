"""Message queues inside the SQL database that you already run.

::

    from queue_over_sql import QueueService

    with QueueService("sqlite:///queue.db") as service:
        emails = service.create_queue("emails")
        emails.publish({"to": "ada@example.org"})
        with emails.receive() as message:
            print(message.payload)

A published message is never lost. One consumer at a time holds it. A consumer that lost its claim
cannot change it. Messages are delivered oldest first.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.errors import (
    CheckpointBehind,
    ClaimLost,
    ConsumerExpired,
    ConsumerFenced,
    ConsumerNotFound,
    ConsumerTaken,
    DatabaseRefused,
    DatabaseUnavailable,
    DuplicateKey,
    GroupFull,
    HistoryDiffers,
    InvalidQueueName,
    InvalidToken,
    NoResult,
    NotFinished,
    NotPermitted,
    PayloadInvalid,
    PayloadTooLarge,
    QueueError,
    QueueNotFound,
    QueueSchemaMismatch,
    ReplyQueueGone,
    RequestTimeout,
    ResultTimeout,
    RoundsGone,
    ScheduleNotFound,
    SchemaOutdated,
    SchemaTooNew,
    ServiceClosed,
    StageLost,
    TopicNotFound,
    UnsupportedByEngine,
    WrongDatabase,
)
from queue_over_sql.message import Message, Publication, Published
from queue_over_sql.observer import MessageFacts, Observer, ReaperReport
from queue_over_sql.retry import Delays, ExponentialBackoff, FixedDelay, NoRetry, RetryPolicy
from queue_over_sql.schema import RELEASE
from queue_over_sql.settings import UNSET, EffectiveSettings, QueueSettings
from queue_over_sql.values.states import GroupState, Outcome, PublishOutcome, Reason, Status

if TYPE_CHECKING:
    from queue_over_sql.aio import *  # noqa: F403 - all that it lists
    from queue_over_sql.archive.archive import Archive
    from queue_over_sql.archive.selection import ArchiveSelection
    from queue_over_sql.attempts import Attempt
    from queue_over_sql.consumers.handling import HandledQueue
    from queue_over_sql.consumers.registrations import ConsumerInfo
    from queue_over_sql.existing_tables.queue import AdoptedQueue
    from queue_over_sql.groups.groups import Group, Groups
    from queue_over_sql.groups.listing import GroupInfo
    from queue_over_sql.migrations import Migrations, SchemaChange
    from queue_over_sql.queue import Queue
    from queue_over_sql.queues.stats import QueueStats
    from queue_over_sql.roles.roles import Roles, RolesInstalled
    from queue_over_sql.schedules import Schedule, Schedules
    from queue_over_sql.selection.operations import EditResult
    from queue_over_sql.selection.selection import LiveSelection, Selection
    from queue_over_sql.selection.why import Explanation
    from queue_over_sql.service import QueueService
    from queue_over_sql.sql_api import SqlApi
    from queue_over_sql.topics import Subscription, Topic
    from queue_over_sql.worker.worker import Worker


__version__ = RELEASE

# These need SQLAlchemy. They are imported when somebody asks for one, so that the help of the
# command line, which needs none of them, appears soon.
_LATER: Final = {
    "archive.archive": ("Archive",),
    "archive.selection": ("ArchiveSelection",),
    "attempts": ("Attempt",),
    "consumers.handling": ("HandledQueue",),
    "consumers.registrations": ("ConsumerInfo",),
    "existing_tables.queue": ("AdoptedQueue",),
    "groups.groups": ("Group", "Groups"),
    "groups.listing": ("GroupInfo",),
    "migrations": ("Migrations", "SchemaChange"),
    "queue": ("Queue",),
    "queues.stats": ("QueueStats",),
    "roles.roles": ("Roles", "RolesInstalled"),
    "schedules": ("Schedule", "Schedules"),
    "selection.operations": ("EditResult",),
    "selection.selection": ("LiveSelection", "Selection"),
    "selection.why": ("Explanation",),
    "service": ("QueueService",),
    "sql_api": ("SqlApi",),
    "topics": ("Subscription", "Topic"),
    "worker.worker": ("Worker",),
}
_MODULES: Final = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    # They need the extra `asyncio`, which not everybody has.
    module = "aio" if name.startswith("Async") else _MODULES.get(name)
    if module is not None:
        found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        globals()[name] = found
        return found
    if name == "Edited":
        msg = "queue_over_sql.Edited is deprecated: use queue_over_sql.EditResult"
        warnings.warn(msg, DeprecationWarning, stacklevel=2)
        return __getattr__("EditResult")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "UNSET",
    "AdoptedQueue",
    "Archive",
    "ArchiveSelection",
    "Attempt",
    "CheckpointBehind",
    "ClaimLost",
    "ConsumerExpired",
    "ConsumerFenced",
    "ConsumerInfo",
    "ConsumerNotFound",
    "ConsumerTaken",
    "DatabaseRefused",
    "DatabaseUnavailable",
    "Delays",
    "DuplicateKey",
    "EditResult",
    "EffectiveSettings",
    "Explanation",
    "ExponentialBackoff",
    "FixedDelay",
    "Group",
    "GroupFull",
    "GroupInfo",
    "GroupState",
    "Groups",
    "HandledQueue",
    "HistoryDiffers",
    "InvalidQueueName",
    "InvalidToken",
    "LiveSelection",
    "Message",
    "MessageFacts",
    "Migrations",
    "NoResult",
    "NoRetry",
    "NotFinished",
    "NotPermitted",
    "Observer",
    "Outcome",
    "PayloadInvalid",
    "PayloadTooLarge",
    "Publication",
    "PublishOutcome",
    "Published",
    "Queue",
    "QueueError",
    "QueueNotFound",
    "QueueSchemaMismatch",
    "QueueService",
    "QueueSettings",
    "QueueStats",
    "ReaperReport",
    "Reason",
    "ReplyQueueGone",
    "RequestTimeout",
    "ResultTimeout",
    "RetryPolicy",
    "Roles",
    "RolesInstalled",
    "RoundsGone",
    "Schedule",
    "ScheduleNotFound",
    "Schedules",
    "SchemaChange",
    "SchemaOutdated",
    "SchemaTooNew",
    "Selection",
    "ServiceClosed",
    "SqlApi",
    "StageLost",
    "Status",
    "Subscription",
    "Topic",
    "TopicNotFound",
    "UnsupportedByEngine",
    "Worker",
    "WrongDatabase",
    "__version__",
]
