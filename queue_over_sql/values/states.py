"""The states of messages: what a publish did, where one stands and why, how one ended."""

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


def status_of(*, claimed: bool, held: bool, due: bool) -> Status:
    """The status of a live message; the first of these facts decides."""
    if claimed:
        return Status.CLAIMED
    if held:
        return Status.HELD
    return Status.READY if due else Status.DELAYED


def status_at(now: int, *, consumer_id: str | None, available_at: int | None) -> Status:
    """The status of a live message at a time; times are microseconds since the epoch."""
    held = available_at is None
    due = available_at is not None and available_at <= now
    return status_of(claimed=consumer_id is not None, held=held, due=due)


class Outcome(enum.StrEnum):
    """The outcome of an archived message."""

    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"


class GroupState(enum.StrEnum):
    """How a group of messages stands."""

    READY = "ready"
    """A consumer can get its next message."""
    BUSY = "busy"
    """As many of its messages are in hand as its limit allows."""
    DELAYED = "delayed"
    """Its next message is due later."""
    HELD = "held"
    """Its next message is held."""
    PAUSED = "paused"
    """An operator paused it."""
    BLOCKED = "blocked"
    """A dead letter blocks it."""
    THROTTLED = "throttled"
    """Its rate is used up."""
    EMPTY = "empty"
    """No message of it waits."""


class Reason(enum.StrEnum):
    """Why a message does not run; each message has exactly one."""

    MISSING = "missing"
    """The queue has no such message."""
    FINISHED = "finished"
    """It has ended and is in the archive."""
    CLAIMED = "claimed"
    """A consumer has it in hand."""
    CONSUMER_DIED = "consumer_died"
    """The consumer that has it is dead; the reaper gives it back."""
    LEASE_EXPIRED = "lease_expired"
    """The lease of its claim has ended; the reaper gives it back."""
    CLAIM_BROKEN = "claim_broken"
    """Somebody changed its claim by SQL, so that nobody holds it; the reaper gives it back."""
    REFUSED = "refused"
    """It is held because the database refused to finish it, or cannot read it."""
    HELD = "held"
    """An operator holds it."""
    EXPIRED = "expired"
    """Nobody started it in time; the reaper ends it."""
    RETRY_LATER = "retry_later"
    """It failed and is due again later."""
    DUE_LATER = "due_later"
    """It is due later."""
    QUEUE_PAUSED = "queue_paused"
    """Its queue is paused."""
    NO_SUCH_PRIORITY = "no_such_priority"
    """Its queue has no such priority, so that no consumer claims it."""
    NO_CONSUMER = "no_consumer"
    """No living consumer handles its queue."""
    UNKNOWN_KIND = "unknown_kind"
    """No living consumer of its queue knows its kind."""
    GROUP_PAUSED = "group_paused"
    """Its group is paused."""
    GROUP_BLOCKED = "group_blocked"
    """A dead letter blocks its group."""
    GROUP_HEAD = "group_head"
    """Another message of its group comes first."""
    GROUP_LIMIT = "group_limit"
    """As many messages of its group are in hand as the group's limit allows."""
    QUEUE_LIMIT = "queue_limit"
    """As many messages of its queue are in hand as the queue's limit allows."""
    GROUP_RATE = "group_rate"
    """The rate of its group is used up."""
    QUEUE_RATE = "queue_rate"
    """The rate of its queue is used up."""
    SUSPECT = "suspect"
    """It is next, but a consumer died with it in hand, so that it has to run alone."""
    IN_LINE = "in_line"
    """It is ready, at a position in the line of its queue."""


DEAD: Final = (Outcome.FAILED.value, Outcome.REJECTED.value, Outcome.EXPIRED.value)
"""The outcomes of dead letters."""


LiveStatus: TypeAlias = Status | Literal["ready", "delayed", "claimed", "held"]
ArchivedStatus: TypeAlias = Outcome | Literal["done", "failed", "rejected", "expired"]
