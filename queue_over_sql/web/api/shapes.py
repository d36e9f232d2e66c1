"""Shapes: the bodies of requests and answers. Their classes check them and document them.

Ids are text in answers, because JavaScript rounds integers above 2**53; requests may use text or
numbers. Durations are seconds. Instants are ISO 8601 with an offset.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from queue_over_sql.values.limits import (
    GROUP_LENGTH,
    KEY_LENGTH,
    KIND_LENGTH,
    LARGEST,
    MAX_PRIORITIES,
    MOST_WEIGHT,
)
from queue_over_sql.values.states import GroupState, OnConflict, Reason
from queue_over_sql.web.settings import Role

MOST_LISTED = 1_000
MOST_LINES = 1_000_000
MOST_CLAIMED = 100
MOST_SETTLED = 1_000
MOST_PUBLISHED = 10_000
MOST_CHOSEN = 1_000
# It names the queue, so the longest name of one must fit.
LONGEST_CLAIM = 500
_YEAR = 366 * 86_400.0

Whole: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]
# Rows of adopted tables may have negative ids.
IdNumber: TypeAlias = Annotated[int, Meta(ge=-LARGEST - 1, le=LARGEST)]
Id: TypeAlias = Annotated[
    Annotated[str, Meta(pattern="^-?[0-9]{1,19}$")] | IdNumber,
    Meta(description="The id of a message, as text or as a number."),
]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=10 * _YEAR, description="Seconds.")]
Lease: TypeAlias = Annotated[
    float,
    Meta(ge=0.001, le=_YEAR, description="Length of the lease in seconds."),
]
Span: TypeAlias = Annotated[float, Meta(ge=0.001, le=100 * _YEAR, description="Seconds.")]
Key: TypeAlias = Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH)]
Kind: TypeAlias = Annotated[str, Meta(min_length=1, max_length=KIND_LENGTH)]
Group: TypeAlias = Annotated[str, Meta(max_length=GROUP_LENGTH)]
Instant: TypeAlias = Annotated[datetime, Meta(tz=True)]
Level: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_PRIORITIES, description="0 is most urgent.")]
Rate: TypeAlias = Annotated[
    str, Meta(max_length=100, description="How many in which time: 5/s, 100/min, 100/h burst 10.")
]
Attempts: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Fingerprint: TypeAlias = Annotated[
    str,
    Meta(
        pattern="^[0-9a-f]{16}$",
        description="Only dead letters with this error: a fingerprint of list_errors.",
    ),
]
ErrorText: TypeAlias = Annotated[str, Meta(max_length=20_000)]
StatusText: TypeAlias = Annotated[
    str,
    Meta(
        max_length=20,
        description="ready, delayed, claimed or held; in the archive done, failed, rejected or "
        "expired.",
    ),
]
ColumnsText: TypeAlias = Annotated[
    str,
    Meta(max_length=10_000, description="A JSON object of own columns to required values."),
]
FieldsText: TypeAlias = Annotated[
    str,
    Meta(
        max_length=10_000,
        description="A JSON object of paths such as address.city to required values.",
    ),
]
Encoding: TypeAlias = Annotated[
    Literal["json", "base64"],
    Meta(
        description="json: the payload is text that contains JSON; it keeps numbers of any size. "
        "base64: the payload is bytes in Base64. Missing: the payload is a JSON value or text."
    ),
]


class Taken(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The base of request bodies; unknown fields are refused."""


class Given(msgspec.Struct, kw_only=True):
    """The base of answers."""


# -- publish


class MessageOptions(Taken, kw_only=True):
    """The options of a message."""

    key: Key | None = None
    kind: Kind | None = None
    group: Group | None = None
    headers: dict[str, Any] | None = None
    priority: Level = 0
    delay: Seconds | None = None
    at: Instant | None = None
    max_attempts: Attempts | None = None
    lease: Lease | None = None
    expires: Annotated[
        Span | None,
        Meta(description="A message that was not started within these seconds ends as expired."),
    ] = None


class NewMessage(MessageOptions, kw_only=True):
    """A message to publish."""

    payload: Annotated[Any, Meta(description="Any JSON value, or text, by the payload type.")]
    payload_encoding: Encoding | None = None
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    on_conflict: Annotated[
        OnConflict | None, Meta(description="What to do if the key is taken; default: raise.")
    ] = None


class NewTopicMessage(MessageOptions, kw_only=True):
    """A message to publish to a topic."""

    payload: Any
    routing_key: Annotated[str, Meta(max_length=255)]
    on_conflict: OnConflict = "raise"


NewMessages: TypeAlias = Annotated[list[NewMessage], Meta(min_length=1, max_length=MOST_PUBLISHED)]


class OnConflictQuery(Taken, kw_only=True):
    """Options for all messages of the request."""

    on_conflict: OnConflict = "raise"


class PublishedMessage(Given, kw_only=True):
    """The result of a publish: the message's id, or that of the one that has its key."""

    id: str
    outcome: Literal["created", "skipped", "replaced", "unchanged"]
    queue: str | UnsetType = UNSET


class PublishedMessages(Given, kw_only=True):
    """The results of a publish, in the order of the messages."""

    messages: list[PublishedMessage]


class PublishedCount(Given, kw_only=True):
    """How many messages were published, and by outcome."""

    count: int
    created: int
    skipped: int
    replaced: int
    unchanged: int


# -- claim and settle


class ClaimRequest(Taken, kw_only=True):
    """How many messages to claim, for how long, and how long to wait for the first."""

    count: Annotated[int, Meta(ge=1, le=MOST_CLAIMED)] = 1
    lease: Annotated[
        Lease | None, Meta(description="Default: the lease of the message or the queue.")
    ] = None
    wait: Annotated[float, Meta(ge=0, le=3600, description="The server has a maximum.")] = 0.0
    payload_encoding: Literal["json"] | None = None


class Message(Given, kw_only=True):
    """A live or finished message."""

    id: str
    queue: str
    key: str | None
    kind: str | None
    group: str | None
    payload: Any
    payload_encoding: Encoding | UnsetType = UNSET
    headers: dict[str, Any]
    columns: dict[str, Any]
    status: Annotated[
        StatusText | None, Meta(description="How it stood when it was read; null if just claimed.")
    ]
    priority: int
    attempt: int
    max_attempts: int
    published_at: Instant
    scheduled_at: Instant
    available_at: Instant | None
    expires_at: Instant | None
    claimed_at: Instant | None
    lease_expires_at: Instant | None
    consumer_id: str | None
    last_attempt_at: Instant | None
    last_error: str | None
    outcome: str | None
    finished_at: Instant | None


class ClaimedMessage(Message, kw_only=True):
    """A message that the client holds, with the token that settles it."""

    claim: Annotated[str, Meta(description="Send it back unchanged to settle the message.")]


class Claimed(Given, kw_only=True):
    """The claimed messages, oldest first; empty if none came in time."""

    messages: list[ClaimedMessage]


ClaimTokens: TypeAlias = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=LONGEST_CLAIM)]],
    Meta(min_length=1, max_length=MOST_SETTLED, description="The tokens of the claims."),
]


class Ack(Taken, kw_only=True):
    """Claims to ack."""

    claims: ClaimTokens


class Nack(Taken, kw_only=True):
    """Claims to nack."""

    claims: ClaimTokens
    error: ErrorText | None = None
    delay: Annotated[
        Seconds | None, Meta(description="Seconds until the next attempt; default: by the policy.")
    ] = None


class Release(Taken, kw_only=True):
    """Claims to release, uncounted."""

    claims: ClaimTokens
    delay: Annotated[
        Seconds | None, Meta(description="Seconds until they are due again; default: now.")
    ] = None


class Reject(Taken, kw_only=True):
    """Claims to reject."""

    claims: ClaimTokens
    reason: ErrorText


class Extend(Taken, kw_only=True):
    """Claims to extend, counted from now."""

    claims: ClaimTokens
    lease: Annotated[
        Lease | None, Meta(description="Default: the lease of the message or the queue.")
    ] = None


class Settled(Given, kw_only=True):
    """How many claims were settled."""

    settled: int


# -- find and edit


class MessageQuery(Taken, kw_only=True):
    """A choice of messages."""

    status: StatusText | None = None
    key: Key | None = None
    kind: Kind | None = None
    group: Group | None = None
    error: Fingerprint | None = None
    payload: FieldsText | None = None
    columns: ColumnsText | None = None
    limit: Annotated[
        int, Meta(ge=1, le=MOST_LINES, description="At most 1,000 unless NDJSON is requested.")
    ] = 100
    after: Annotated[IdNumber | None, Meta(description="The last id of the previous page.")] = None
    payload_encoding: Literal["json"] | None = None


class MessagePage(Given, kw_only=True):
    """Messages by id; ``next`` is ``after`` of the next page, null at the end.

    ``unreadable`` has the ids of rows with values that this library never writes.
    """

    messages: list[Message]
    unreadable: list[str]
    next: str | None


class Attempt(Given, kw_only=True):
    """A failed attempt of a message."""

    attempt: int
    outcome: Annotated[
        str, Meta(description="retried, failed, rejected, lost or held; later also others.")
    ]
    began_at: Instant | None
    ended_at: Instant
    consumer_id: str
    worker: Annotated[str | None, Meta(description="Null if its registration was gone.")]
    host: str | None
    pid: int | None
    error: str | None
    traceback: str | None


class MessageStory(Given, kw_only=True):
    """A message and its history."""

    message: Message
    archived: bool
    last_traceback: str | None
    attempts: Annotated[
        list[Attempt], Meta(description="The failed attempts, at most 20, the oldest first.")
    ]


class Explanation(Given, kw_only=True):
    """Why a message does not run: one reason, and what to do about it."""

    message_id: str
    queue: str
    reason: Annotated[str, Meta(description=f"One of {', '.join(Reason)}; later also others.")]
    text: str
    since: Annotated[
        Instant | None, Meta(description="When it was claimed, or when its queue was paused.")
    ]
    until: Annotated[
        Instant | None, Meta(description="When the reason ends by itself, if that is known.")
    ]
    position: Annotated[
        int | None, Meta(description="Its place in line, from 1; null beyond 10,000.")
    ]
    consumer_id: str | None
    consumer: ConsumerInfo | None
    waits_for: Annotated[
        str | None,
        Meta(description="The message of its group, or the dead letter, that it waits for."),
    ]


class DeadError(Given, kw_only=True):
    """An error, and the dead letters that have it."""

    fingerprint: Annotated[
        str,
        Meta(
            description="The same in all queues, for filters. "
            "A server that masks fields has its own."
        ),
    ]
    error: Annotated[str, Meta(description="How the error of the newest begins.")]
    kind: Annotated[str | None, Meta(description="The kind of the newest.")]
    count: int
    more: Annotated[
        bool, Meta(description="Whether there are more: only the newest dead letters are counted.")
    ]
    first_at: Instant
    last_at: Instant
    message_id: Annotated[str, Meta(description="The newest of them.")]
    hours: Annotated[
        list[int],
        Meta(description="How many ended in each of the last 24 hours, the oldest hour first."),
    ]


class ErrorQuery(Taken, kw_only=True):
    """How many errors to list."""

    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 100


class ErrorList(Given, kw_only=True):
    """The errors of a queue, the one that came last first."""

    errors: list[DeadError]


class Filter(Taken, kw_only=True):
    """A filter for messages."""

    status: StatusText | None = None
    key: Key | None = None
    kind: Kind | None = None
    group: Group | None = None
    error: Fingerprint | None = None
    payload: Annotated[
        dict[str, Any] | None,
        Meta(description="Paths such as address.city to the values that they must have."),
    ] = None
    columns: (
        Annotated[
            dict[str, Any],
            Meta(
                description="Own columns, or those of an adopted table, to their values.",
                max_length=50,
            ),
        ]
        | None
    ) = None


class SelectedMessages(Taken, kw_only=True):
    """Messages by their ids, or those that a filter finds if they are not too many."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=MOST_CHOSEN)] | None = None
    filter: Filter | None = None
    at_most: Annotated[
        Annotated[int, Meta(ge=0, le=LARGEST)] | None,
        Meta(
            description="With a filter: if it finds more messages than this, nothing is changed "
            "and the answer says how many. Send what you have seen counted."
        ),
    ] = None


class Reschedule(SelectedMessages, kw_only=True):
    """Messages to make due at a time or after a delay."""

    at: Instant | None = None
    delay: Seconds | None = None


class MaxAttempts(SelectedMessages, kw_only=True):
    """Messages to allow another number of attempts."""

    max_attempts: Attempts


class Requeue(SelectedMessages, kw_only=True):
    """Finished messages to requeue; with one id, perhaps with another payload."""

    payload: Annotated[
        Any,
        Meta(description="Another payload for the message of one id, checked as by a publish."),
    ] = UNSET
    payload_encoding: Encoding | None = None


class Prioritize(SelectedMessages, kw_only=True):
    """Messages to move to another priority, or to the front of their own."""

    priority: Level | None = None
    front: bool = False


class Cancel(Taken, kw_only=True):
    """Messages to cancel, even if consumers hold them."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=MOST_CHOSEN)]
    reason: ErrorText | None = None


class Edited(Given, kw_only=True):
    """How many messages were changed; ``skipped`` ones stayed, because a consumer holds them."""

    changed: int
    skipped: int


class Count(Given, kw_only=True):
    """How many messages there are."""

    count: int


# -- queues


class SpanByOutcome(Taken, kw_only=True):
    """Seconds for each outcome; null: forever."""

    done: Span | UnsetType | None = UNSET
    failed: Span | UnsetType | None = UNSET
    rejected: Span | UnsetType | None = UNSET
    expired: Span | UnsetType | None = UNSET


class CountByOutcome(Taken, kw_only=True):
    """A number for each outcome; null: any number."""

    done: Whole | UnsetType | None = UNSET
    failed: Whole | UnsetType | None = UNSET
    rejected: Whole | UnsetType | None = UNSET
    expired: Whole | UnsetType | None = UNSET


class QueueSettings(Taken, kw_only=True):
    """Settings of a queue; missing fields get their default, or stay unchanged."""

    lease: Lease | UnsetType = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    payload: Literal["json", "text", "bytes"] | UnsetType = UNSET
    priorities: Annotated[int, Meta(ge=1, le=MAX_PRIORITIES)] | UnsetType = UNSET
    archive: Literal["none", "failed", "all"] | UnsetType = UNSET
    archive_ttl: Span | SpanByOutcome | UnsetType | None = UNSET
    archive_limit: Whole | CountByOutcome | UnsetType | None = UNSET
    unique: Literal["live", "waiting"] | UnsetType = UNSET
    dedup_window: Span | UnsetType | None = UNSET
    expires: Span | UnsetType | None = UNSET
    dead_letter_queue: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType | None = UNSET
    unused_for: Span | UnsetType | None = UNSET
    group_limit: Attempts | UnsetType | None = UNSET
    group_order: Literal["fifo", "any"] | UnsetType = UNSET
    group_rate: Rate | UnsetType | None = UNSET
    group_fair: bool | UnsetType = UNSET
    block_on_failure: bool | UnsetType = UNSET
    queue_limit: Annotated[int, Meta(ge=1, le=1_000)] | UnsetType | None = UNSET
    queue_rate: Rate | UnsetType | None = UNSET
    max_length: Annotated[int, Meta(ge=1, le=10_000_000)] | UnsetType | None = UNSET
    when_full: Literal["wait", "reject", "replace"] | UnsetType = UNSET
    max_payload_bytes: Annotated[int, Meta(ge=1, le=2**30)] | UnsetType = UNSET
    kind_timeout: Span | UnsetType = UNSET
    warn_age: Span | UnsetType | None = UNSET
    critical_age: Span | UnsetType | None = UNSET


class PutQueue(QueueSettings, kw_only=True):
    """Settings of a queue, or all that GET shows of one.

    What is no setting cannot be changed here, so it must be as GET shows it: ``name``, ``paused``,
    ``retry``, ``columns`` and ``table``.
    """

    name: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    retry: dict[str, Any] | UnsetType = UNSET
    columns: (
        Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=1_000)] | UnsetType
    ) = UNSET
    table: Annotated[str, Meta(max_length=1_000)] | UnsetType | None = UNSET


class Queue(Given, kw_only=True):
    """A queue and its settings."""

    name: str
    paused: bool
    lease: float
    max_attempts: int
    retry: dict[str, Any]
    payload: str
    priorities: int
    archive: str
    archive_ttl: float | dict[str, float] | None
    archive_limit: int | dict[str, int] | None
    unique: str
    dedup_window: float | None
    expires: float | None
    dead_letter_queue: str | None
    unused_for: float | None
    group_limit: int | None
    group_order: str
    group_rate: str | None
    group_fair: bool
    block_on_failure: bool
    queue_limit: int | None
    queue_rate: str | None
    max_length: int | None
    when_full: str
    max_payload_bytes: int
    kind_timeout: float
    warn_age: Annotated[
        float | None, Meta(description="The dashboard marks an oldest ready message of this age.")
    ]
    critical_age: float | None
    columns: list[str]
    table: Annotated[str | None, Meta(description="Your table, if the queue is an adopted table.")]


class Queues(Given, kw_only=True):
    """All queues by name; those that cannot be read are listed separately."""

    queues: list[Queue]
    unreadable: list[str]


class GroupsQuery(Taken, kw_only=True):
    """Which groups to list first."""

    by: Literal["waiting", "age", "blocked"] = "waiting"
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class GroupInfo(Given, kw_only=True):
    """How a group of messages stands."""

    name: str
    state: Annotated[str, Meta(description=f"One of {', '.join(GroupState)}; later also others.")]
    waiting: int
    claimed: int
    limit: int
    own_limit: int | None
    rate: Annotated[str | None, Meta(description="How fast its messages may start.")]
    own_rate: Annotated[str | None, Meta(description="Null: that of the queue.")]
    next_token: Annotated[
        datetime | None, Meta(description="When the next may start, while the rate is used up.")
    ]
    weight: Annotated[int, Meta(description="Its share, in a queue with group_fair.")]
    own_weight: int | None
    oldest_age: Annotated[float | None, Meta(description="Seconds.")]
    next_due: Instant | None
    head: Annotated[
        str | None, Meta(description="The message of a FIFO group that the others wait for.")
    ]
    consumer_ids: list[str]
    claimed_since: Instant | None
    paused_since: Instant | None
    blocked_by: Annotated[str | None, Meta(description="The dead letter that blocks it.")]


class Groups(Given, kw_only=True):
    """Groups of messages: those with the largest backlog or the oldest message first."""

    groups: list[GroupInfo]


class GroupName(Taken, kw_only=True):
    """A group of messages; its name may be empty."""

    group: Group


class GroupRules(GroupName, kw_only=True):
    """A group and what it has of its own: its limit and rate (null: the queue's), its weight."""

    limit: Attempts | UnsetType | None = UNSET
    rate: Rate | UnsetType | None = UNSET
    weight: Annotated[int, Meta(ge=1, le=MOST_WEIGHT)] | UnsetType | None = UNSET


class Stats(Given, kw_only=True):
    """Counts of a queue at one moment; they may be some seconds old."""

    ready: int
    delayed: int
    claimed: int
    held: int
    archived: int
    done: int
    failed: int
    rejected: int
    expired: int
    discarded: int
    oldest_ready_age: float | None
    paused: bool
    blocked_groups: Annotated[int, Meta(description="Groups that a dead letter blocks.")]
    paused_groups: Annotated[int, Meta(description="Groups that an operator paused.")]
    throttled_groups: Annotated[
        int, Meta(description="Groups that have messages due, and whose rate is used up.")
    ]
    queue_limit: Annotated[
        int | None, Meta(description="How many messages may be claimed at once; null: any number.")
    ]
    queue_rate: Annotated[
        str | None, Meta(description="How fast messages may start; null: as fast as they can.")
    ]


class Confirmed(Taken, kw_only=True):
    """A confirmation."""

    confirm: Annotated[str, Meta(max_length=100, description="The name of the queue, to confirm.")]


class Purge(Confirmed, kw_only=True):
    """A purge of all live messages."""

    claimed: Annotated[bool, Meta(description="Also remove claimed messages.")] = False


class HandledQueue(Given, kw_only=True):
    """A queue that a consumer handles."""

    queue: str
    concurrency: Annotated[
        int | None, Meta(description="Calls of its workers at once. null: it has no worker for it.")
    ]
    kinds: Annotated[list[str] | None, Meta(description="The kinds that it knows. null: all.")]


class ConsumerInfo(Given, kw_only=True):
    """A registered consumer."""

    consumer_id: str
    name: str
    host: str
    pid: int
    started_at: Instant
    heartbeat_at: Instant
    expires_at: Annotated[Instant | None, Meta(description="null: never")]
    durable: bool
    queue: str | None
    handles: Annotated[list[HandledQueue], Meta(description="As it said with its heartbeats.")]
    version: Annotated[str | None, Meta(description="Of its library. null: not known.")]


class Consumers(Given, kw_only=True):
    """All consumers, the oldest first."""

    consumers: list[ConsumerInfo]


class Me(Given, kw_only=True):
    """The caller, as the server sees it."""

    name: str
    role: Role
    way: str
    read_only: bool
    csrf: Annotated[str | None, Meta(description="For X-CSRF-Token; null with a bearer token.")]
    queues: Annotated[list[str], Meta(description="Only these queues; empty: all.")]


# -- schedules and topics


class ScheduleRun(Given, kw_only=True):
    """A message that a schedule published."""

    at: Instant
    id: str


class Schedule(Given, kw_only=True):
    """A message that is published regularly."""

    name: str
    queue: str
    payload: Any
    payload_encoding: Encoding | UnsetType = UNSET
    cron: str | None
    every: float | None
    timezone: str
    missed: str
    options: dict[str, Any]
    next_at: Instant | None
    paused: bool
    created_at: Instant
    last_runs: Annotated[list[ScheduleRun], Meta(description="The last ten, the newest first.")]


class Schedules(Given, kw_only=True):
    """All schedules, by name."""

    schedules: list[Schedule]


class UpcomingQuery(Taken, kw_only=True):
    """How many times to show."""

    count: Annotated[int, Meta(ge=1, le=100)] = 5


class Upcoming(Given, kw_only=True):
    """The next times of a schedule in UTC, even if it is paused."""

    upcoming: list[Instant]


class Subscription(Given, kw_only=True):
    """A subscription: which messages of a topic a queue gets."""

    queue: str
    pattern: str
    where: dict[str, Any] | None
    created_at: Instant


class Subscriptions(Given, kw_only=True):
    """The subscriptions to a topic, by queue and pattern."""

    subscriptions: list[Subscription]


class Topics(Given, kw_only=True):
    """The names of all topics."""

    topics: list[str]


class Route(Taken, kw_only=True):
    """A message for a test of the routing; it is not published."""

    routing_key: Annotated[str, Meta(max_length=255)]
    payload: Any = None


class Routed(Given, kw_only=True):
    """The queues that would get a copy, and the matching subscriptions."""

    queues: list[str]
    subscriptions: list[Subscription]


# -- access


class NewToken(Taken, kw_only=True):
    """A token to create."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Role
    expires: Annotated[Span | None, Meta(description="Seconds from now; null: never.")] = None
    queues: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=60)]],
        Meta(max_length=20, description="Only for queues with such names: orders*; empty: all."),
    ] = msgspec.field(default_factory=list)


class Token(Given, kw_only=True):
    """A token, without the token itself."""

    name: str
    role: Role
    created_at: Instant
    expires_at: Instant | None
    queues: Annotated[list[str], Meta(description="Only for these queues; empty: for all.")]


class RemovedToken(Taken, kw_only=True):
    """Whether the last token of an admin may go."""

    last_admin: bool = False


class Tokens(Given, kw_only=True):
    """All tokens, by name."""

    tokens: list[Token]


class MadeToken(Token, kw_only=True):
    """A new token; only this answer contains it."""

    token: str


class AuditQuery(Taken, kw_only=True):
    """A choice of audit rows."""

    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 100
    before: Annotated[Whole | None, Meta(description="`next` of the previous page.")] = None
    queue: Annotated[str, Meta(max_length=40)] | None = None
    who: Annotated[str, Meta(max_length=200, description="Only what this user did.")] | None = None
    what: Annotated[str, Meta(max_length=60, description="Such as remove.")] | None = None
    day: Annotated[date, Meta(description="In UTC, such as 2026-01-31.")] | None = None


class AuditRow(Given, kw_only=True):
    """A row of the audit."""

    id: str
    at: Instant
    who: str
    role: str
    what: str
    queue: str | None
    count: int | None
    address: str | None
    detail: str | None


class Audit(Given, kw_only=True):
    """Rows of the audit, the newest first; ``next`` is ``before`` of the next page."""

    rows: list[AuditRow]
    next: str | None


class Problem(Given, kw_only=True):
    """An error, by RFC 9457; what else it has depends on its type."""

    type: Annotated[str, Meta(description="Never changes: /problems/queue-not-found, …")]
    title: str
    status: int
    detail: str
    queue: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    key: Annotated[str | UnsetType, Meta(description="The key that is taken.")] = UNSET
    id: Annotated[
        str | UnsetType | None, Meta(description="The message that has the key, if it is known.")
    ] = UNSET
    lost: Annotated[list[str] | UnsetType, Meta(description="The claims that are lost.")] = UNSET
    settled: Annotated[int | UnsetType, Meta(description="How many other claims were settled.")] = (
        UNSET
    )
    found: Annotated[int | UnsetType, Meta(description="How many messages match.")] = UNSET
    size: Annotated[int | UnsetType, Meta(description="Bytes of the payload.")] = UNSET
    limit: Annotated[int | UnsetType, Meta(description="The most bytes of a payload.")] = UNSET
    line: Annotated[int | UnsetType, Meta(description="The line that was refused.")] = UNSET
    published: Annotated[
        int | UnsetType, Meta(description="How many messages were published before it.")
    ] = UNSET
