"""What goes into a queue, and what became of it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from queue_over_sql.durations import Duration


class PublishOutcome(enum.StrEnum):
    """What a publish did about its key."""

    CREATED = "created"
    SKIPPED = "skipped"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


@dataclasses.dataclass(frozen=True)
class Publication:
    """One message to be published, for ``publish_many`` and ``load``.

    Args:
        payload: JSON value, ``str`` or ``bytes``, by the queue's payload type.
        key: at most one live message of the queue has it; up to 200 characters.
        kind: name of the payload's type, up to 100 characters.
        headers: string keys to JSON values, up to 64 KiB.
        priority: 0 (most urgent) up to the queue's ``priorities`` - 1.
        delay: how long it stays invisible.
        at: when it becomes visible; instead of ``delay``.
        max_attempts: overrides the queue's.
        lease: overrides the queue's.
        columns: values of the queue's own columns, by name.
    """

    payload: Any
    _: dataclasses.KW_ONLY
    key: str | None = None
    kind: str | None = None
    headers: Mapping[str, Any] | None = None
    priority: int = 0
    delay: Duration | None = None
    at: datetime | None = None
    max_attempts: int | None = None
    lease: Duration | None = None
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Published:
    """What became of a publication.

    Attributes:
        id: id of the live message; with ``skipped`` that of the one that was there, or that
            finished within the queue's ``dedup_window``.
        outcome: ``created``, ``skipped``, ``replaced`` or ``unchanged``.
        queue: which queue got this copy of a message to a topic; None of a message to one queue.
    """

    id: int
    outcome: PublishOutcome = PublishOutcome.CREATED
    queue: str | None = None

    def __init__(
        self,
        id: int,  # noqa: A002 - the attribute's name
        outcome: PublishOutcome = PublishOutcome.CREATED,
        queue: str | None = None,
    ) -> None:
        # A batch has thousands: the one that is generated for frozen classes takes twice the time.
        values = self.__dict__
        values["id"] = id
        values["outcome"] = outcome
        values["queue"] = queue
