"""The states of messages: what a publish did, where a live message stands, how one ended."""

from __future__ import annotations

import enum
from typing import Final, Literal, TypeAlias

OnConflict: TypeAlias = Literal["raise", "skip", "replace"]
"""What a publish does if the key is taken."""


class PublishOutcome(enum.StrEnum):
    """The result of a publish."""

    CREATED = "created"
    SKIPPED = "skipped"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


class Status(enum.StrEnum):
    """The status of a live message."""

    READY = "ready"
    DELAYED = "delayed"
    CLAIMED = "claimed"
    HELD = "held"


class Outcome(enum.StrEnum):
    """The outcome of an archived message."""

    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"


DEAD: Final = (Outcome.FAILED.value, Outcome.REJECTED.value, Outcome.EXPIRED.value)
"""The outcomes of dead letters."""


LiveStatus: TypeAlias = Status | Literal["ready", "delayed", "claimed", "held"]
ArchivedStatus: TypeAlias = Outcome | Literal["done", "failed", "rejected", "expired"]
