"""Shapes: what requests carry and answers say; each is checked, and is in the document, by itself.

Ids are text, because JavaScript bends whole numbers beyond 2**53; they are taken as text and as
numbers. Durations are seconds. Instants are ISO 8601 with an offset.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from queue_over_sql.message import OnConflict
from queue_over_sql.schema.system_tables import KEY_LENGTH, KIND_LENGTH
from queue_over_sql.settings import LARGEST, MAX_PRIORITIES
from queue_over_sql.web.settings import Role

MOST_LISTED = 1_000
MOST_LINES = 1_000_000
MOST_CLAIMED = 100
MOST_SETTLED = 1_000
MOST_PUBLISHED = 10_000
MOST_CHOSEN = 1_000
_YEAR = 366 * 86_400.0

Whole: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]
Id: TypeAlias = Annotated[
    Annotated[str, Meta(pattern="^[0-9]{1,19}$")] | Whole,
    Meta(description="The id of a message, as text or as a number."),
]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=10 * _YEAR, description="Seconds.")]
Lease: TypeAlias = Annotated[
    float,
    Meta(ge=0.001, le=_YEAR, description="Seconds that a claim holds without being extended."),
]
Span: TypeAlias = Annotated[float, Meta(ge=0.001, le=100 * _YEAR, description="Seconds.")]
Key: TypeAlias = Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH)]
Kind: TypeAlias = Annotated[str, Meta(min_length=1, max_length=KIND_LENGTH)]
Instant: TypeAlias = Annotated[datetime, Meta(tz=True)]
Level: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_PRIORITIES, description="0 is most urgent.")]
Attempts: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
ErrorText: TypeAlias = Annotated[str, Meta(max_length=20_000)]
StatusText: TypeAlias = Annotated[
    str,
    Meta(
        max_length=20,
        description="ready, delayed, claimed or held; in the archive done, failed, rejected or "
        "expired.",
    ),
]
FieldsText: TypeAlias = Annotated[
    str,
    Meta(
        max_length=10_000,
        description="A JSON object of paths such as address.city to values that are equal.",
    ),
]
Encoding: TypeAlias = Annotated[
    Literal["json", "base64"],
    Meta(
        description="How the payload is written: as text that holds JSON, in which numbers of any "
        "size survive, or as bytes in Base64. Not there where the payload stands by itself."
    ),
]


class Taken(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What comes in; a field that nobody knows is refused."""


class Given(msgspec.Struct, kw_only=True):
    """What goes out."""


# -- publish


class NewMessage(Taken, kw_only=True):
    """A message to be published."""

    payload: Annotated[Any, Meta(description="As the queue takes it: any JSON, or a text.")]
    payload_encoding: Encoding | None = None
    key: Key | None = None
    kind: Kind | None = None
    headers: dict[str, Any] | None = None
    priority: Level = 0
    delay: Seconds | None = None
    at: Instant | None = None
    max_attempts: Attempts | None = None
    lease: Lease | None = None
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    on_conflict: Annotated[
        OnConflict | None, Meta(description="Where the key is taken: raise by default.")
    ] = None


class NewTopicMessage(Taken, kw_only=True):
    """A message to be published to a topic."""

    payload: Any
    routing_key: Annotated[str, Meta(max_length=255)]
    key: Key | None = None
    kind: Kind | None = None
    headers: dict[str, Any] | None = None
    priority: Level = 0
    delay: Seconds | None = None
    at: Instant | None = None
    max_attempts: Attempts | None = None
    lease: Lease | None = None
    on_conflict: OnConflict = "raise"


NewMessages: TypeAlias = Annotated[list[NewMessage], Meta(min_length=1, max_length=MOST_PUBLISHED)]


class OnConflictQuery(Taken, kw_only=True):
    """Options of many messages."""

    on_conflict: OnConflict = "raise"


class PublishedMessage(Given, kw_only=True):
    """What became of a message: its id, or that of the one that has its key."""

    id: str
    outcome: Literal["created", "skipped", "replaced", "unchanged"]
    queue: str | UnsetType = UNSET


class PublishedMessages(Given, kw_only=True):
    """What became of messages, in their order."""

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
    """How many messages are wanted, for how long, and how long to wait for the first."""

    count: Annotated[int, Meta(ge=1, le=MOST_CLAIMED)] = 1
    lease: Annotated[
        Lease | None, Meta(description="The message's or the queue's own by default.")
    ] = None
    wait: Annotated[float, Meta(ge=0, le=3600, description="Cut to the server's longest.")] = 0.0
    payload_encoding: Literal["json"] | None = None


class Message(Given, kw_only=True):
    """A message, live or finished."""

    id: str
    queue: str
    key: str | None
    kind: str | None
    payload: Any
    payload_encoding: Encoding | UnsetType = UNSET
    headers: dict[str, Any]
    columns: dict[str, Any]
    priority: int
    attempt: int
    max_attempts: int
    published_at: datetime
    scheduled_at: datetime
    available_at: datetime | None
    claimed_at: datetime | None
    lease_expires_at: datetime | None
    consumer_id: str | None
    last_attempt_at: datetime | None
    last_error: str | None
    outcome: str | None
    finished_at: datetime | None


class ClaimedMessage(Message, kw_only=True):
    """A message that the client holds, with the token that settles it."""

    claim: Annotated[str, Meta(description="Send it back, unchanged, to settle the message.")]


class Claimed(Given, kw_only=True):
    """The messages that were claimed, oldest first; none where there were none in time."""

    messages: list[ClaimedMessage]


ClaimTokens: TypeAlias = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=100)]],
    Meta(min_length=1, max_length=MOST_SETTLED, description="The tokens of the claims."),
]


class Ack(Taken, kw_only=True):
    """Claims whose messages are done."""

    claims: ClaimTokens


class Nack(Taken, kw_only=True):
    """Claims whose messages failed."""

    claims: ClaimTokens
    error: ErrorText | None = None
    delay: Annotated[
        Seconds | None, Meta(description="Until the next attempt; by the retry policy by default.")
    ] = None


class Release(Taken, kw_only=True):
    """Claims that are given back, uncounted."""

    claims: ClaimTokens
    delay: Annotated[
        Seconds | None, Meta(description="Nobody gets them before; at once by default.")
    ] = None


class Reject(Taken, kw_only=True):
    """Claims whose messages are dead."""

    claims: ClaimTokens
    reason: ErrorText


class Extend(Taken, kw_only=True):
    """Claims that are to hold for longer, counted from now."""

    claims: ClaimTokens
    lease: Annotated[
        Lease | None, Meta(description="The message's own or the queue's by default.")
    ] = None


class Settled(Given, kw_only=True):
    """How many claims were settled."""

    settled: int


# -- find and edit


class MessageQuery(Taken, kw_only=True):
    """Which messages."""

    status: StatusText | None = None
    key: Key | None = None
    kind: Kind | None = None
    payload: FieldsText | None = None
    limit: Annotated[
        int, Meta(ge=1, le=MOST_LINES, description="At most 1,000 unless NDJSON is asked for.")
    ] = 100
    after: Annotated[Whole | None, Meta(description="The id at which the last page ended.")] = None
    payload_encoding: Literal["json"] | None = None


class MessagePage(Given, kw_only=True):
    """Messages by id; ``next`` is ``after`` of the next page, null at the end.

    ``unreadable`` has the ids of rows that hold what this library never writes.
    """

    messages: list[Message]
    unreadable: list[str]
    next: str | None


class MessageStory(Given, kw_only=True):
    """A message and what happened to it."""

    message: Message
    archived: bool
    last_traceback: str | None


class Filter(Taken, kw_only=True):
    """Which messages, by what they are."""

    status: StatusText | None = None
    key: Key | None = None
    kind: Kind | None = None
    payload: Annotated[
        dict[str, Any] | None,
        Meta(description="Paths such as address.city to values that are equal."),
    ] = None


class Chosen(Taken, kw_only=True):
    """Messages by their ids, or those that a filter finds, if they are not too many."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=MOST_CHOSEN)] | None = None
    filter: Filter | None = None
    at_most: Annotated[
        Annotated[int, Meta(ge=0, le=LARGEST)] | None,
        Meta(
            description="With a filter: where it finds more messages than this, nothing is changed "
            "and the answer says how many. Send what you have seen counted."
        ),
    ] = None


class Reschedule(Chosen, kw_only=True):
    """Messages that are to be due at an instant, or so long from now."""

    at: Instant | None = None
    delay: Seconds | None = None


class Prioritize(Chosen, kw_only=True):
    """Messages that are to have another level, or to be the first of theirs."""

    priority: Level | None = None
    front: bool = False


class Cancel(Taken, kw_only=True):
    """Messages that are to end as dead letters, whoever holds them."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=MOST_CHOSEN)]
    reason: ErrorText | None = None


class Edited(Given, kw_only=True):
    """How many messages were changed; ``skipped`` were left alone, because a consumer has them."""

    changed: int
    skipped: int


class Count(Given, kw_only=True):
    """How many messages there are."""

    count: int


# -- queues


class SpanByOutcome(Taken, kw_only=True):
    """Seconds for each outcome; null for ever."""

    done: Span | UnsetType | None = UNSET
    failed: Span | UnsetType | None = UNSET
    rejected: Span | UnsetType | None = UNSET
    expired: Span | UnsetType | None = UNSET


class CountByOutcome(Taken, kw_only=True):
    """How many of each outcome; null for any number."""

    done: Whole | UnsetType | None = UNSET
    failed: Whole | UnsetType | None = UNSET
    rejected: Whole | UnsetType | None = UNSET
    expired: Whole | UnsetType | None = UNSET


class QueueSettings(Taken, kw_only=True):
    """Settings of a queue; what is left out is the default, or stays as it is."""

    lease: Lease | UnsetType = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    payload: Literal["json", "text", "bytes"] | UnsetType = UNSET
    priorities: Annotated[int, Meta(ge=1, le=MAX_PRIORITIES)] | UnsetType = UNSET
    archive: Literal["none", "failed", "all"] | UnsetType = UNSET
    archive_ttl: Span | SpanByOutcome | UnsetType | None = UNSET
    archive_limit: Whole | CountByOutcome | UnsetType | None = UNSET
    dedup_window: Span | UnsetType | None = UNSET
    max_payload_bytes: Annotated[int, Meta(ge=1, le=2**30)] | UnsetType = UNSET
    kind_timeout: Span | UnsetType = UNSET


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
    dedup_window: float | None
    max_payload_bytes: int
    kind_timeout: float
    columns: list[str]
    table: Annotated[str | None, Meta(description="The table of your own that it lives in.")]


class Queues(Given, kw_only=True):
    """All queues, by name; those that cannot be read are named apart."""

    queues: list[Queue]
    unreadable: list[str]


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


class Confirmed(Taken, kw_only=True):
    """That it is meant."""

    confirm: Annotated[str, Meta(max_length=100, description="The name of the queue, once more.")]


class Purge(Confirmed, kw_only=True):
    """That all live messages are to go."""

    claimed: Annotated[bool, Meta(description="Also those that consumers hold.")] = False


class ConsumerInfo(Given, kw_only=True):
    """A consumer that is registered."""

    consumer_id: str
    name: str
    host: str
    pid: int
    started_at: datetime
    heartbeat_at: datetime
    expires_at: Annotated[datetime | None, Meta(description="null: never")]
    durable: bool
    queue: str | None


class Consumers(Given, kw_only=True):
    """All consumers, the oldest first."""

    consumers: list[ConsumerInfo]


class Me(Given, kw_only=True):
    """Who asks, as the server sees it."""

    name: str
    role: Role
    way: str
    read_only: bool
    csrf: Annotated[str | None, Meta(description="For X-CSRF-Token; null with a bearer token.")]


# -- schedules and topics


class Schedule(Given, kw_only=True):
    """A message that is published again and again."""

    name: str
    queue: str
    payload: Any
    payload_encoding: Encoding | UnsetType = UNSET
    cron: str | None
    every: float | None
    timezone: str
    missed: str
    options: dict[str, Any]
    next_at: datetime | None
    paused: bool
    created_at: datetime


class Schedules(Given, kw_only=True):
    """All schedules, by name."""

    schedules: list[Schedule]


class UpcomingQuery(Taken, kw_only=True):
    """How many instants."""

    count: Annotated[int, Meta(ge=1, le=100)] = 5


class Upcoming(Given, kw_only=True):
    """The next instants of a schedule, in UTC, whether or not it is paused."""

    upcoming: list[datetime]


class Subscription(Given, kw_only=True):
    """Which messages of a topic a queue gets."""

    queue: str
    pattern: str
    where: dict[str, Any] | None
    created_at: datetime


class Subscriptions(Given, kw_only=True):
    """The subscriptions to a topic, by queue and pattern."""

    subscriptions: list[Subscription]


class Topics(Given, kw_only=True):
    """The names of all topics."""

    topics: list[str]


class Route(Taken, kw_only=True):
    """A message that is not published, to see where it would go."""

    routing_key: Annotated[str, Meta(max_length=255)]
    payload: Any = None


class Routed(Given, kw_only=True):
    """The queues that would get a copy, and the subscriptions that fit."""

    queues: list[str]
    subscriptions: list[Subscription]


# -- access


class NewToken(Taken, kw_only=True):
    """A token to be made."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Role
    expires: Annotated[Span | None, Meta(description="Seconds from now; null: never.")] = None


class Token(Given, kw_only=True):
    """A token, but not the token itself."""

    name: str
    role: Role
    created_at: datetime
    expires_at: datetime | None


class Tokens(Given, kw_only=True):
    """All tokens, by name."""

    tokens: list[Token]


class MadeToken(Token, kw_only=True):
    """A token that was made; it is shown this once."""

    token: str


class AuditQuery(Taken, kw_only=True):
    """Which rows of the audit."""

    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 100
    before: Annotated[Whole | None, Meta(description="`next` of the last page.")] = None
    queue: Annotated[str, Meta(max_length=40)] | None = None


class AuditRow(Given, kw_only=True):
    """Something that was done."""

    id: str
    at: datetime
    who: str
    role: str
    what: str
    queue: str | None
    count: int | None
    address: str | None
    detail: str | None


class Audit(Given, kw_only=True):
    """What was done, the newest first; ``next`` is ``before`` of the next page."""

    rows: list[AuditRow]
    next: str | None


class Problem(Given, kw_only=True):
    """What went wrong, by RFC 9457; some types have further members."""

    type: Annotated[str, Meta(description="Stays the same: /problems/queue-not-found, …")]
    title: str
    status: int
    detail: str
