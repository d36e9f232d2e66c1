"""Messages as the pages show them, with a limited size; in lists only how payloads begin."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import Enum, LargeBinary, String, Text, cast, func, select

from queue_over_sql import ArchiveSelection, inside
from queue_over_sql.errors import QueueError, shown, visible
from queue_over_sql.observability import AtLeast
from queue_over_sql.values.durations import optional_instant
from queue_over_sql.values.headers import REQUEUED_FROM
from queue_over_sql.values.humanize import UNKNOWN
from queue_over_sql.values.json_text import read_exactly
from queue_over_sql.values.limits import LARGEST
from queue_over_sql.values.states import DEAD, Status, status_at
from queue_over_sql.values.texts import is_storable

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from queue_over_sql import LiveSelection, Queue, QueueService
    from queue_over_sql.web.masking import Mask

PAYLOAD_LIMIT: Final = 200_000
"""The largest part of a payload, in characters or bytes, that is read and shown."""

HELD_LIMIT: Final = 1_000
"""How many of a queue's claimed messages are looked at to say who holds them."""

_PREVIEWED_BYTES: Final = 4 * 1024 * 1024
_PREVIEW_LIMIT: Final = 2_000
_PREVIEW_LENGTH: Final = 80
_LISTED_COLUMNS: Final = 3
_COLUMN_LENGTH: Final = 2_000
_LARGEST_EXPONENT: Final = 100
_ERROR_CHARACTERS: Final = 300
_HEX_BYTES: Final = 512
_EDITABLE: Final = 50_000
_TIMEOUT: Final = 0.5


@dataclasses.dataclass(frozen=True)
class ShownMessage:
    """A live or archived message for the pages; times are in UTC.

    Attributes:
        status: ``ready``, ``delayed``, ``claimed``, ``held``, or the outcome.
        error: the beginning of the last error.
        holder, round, lease_until: of the present or last claim.
    """

    id: int
    key: str | None
    kind: str | None
    group: str | None
    status: str
    priority: int
    attempts: int
    max_attempts: int
    published_at: datetime | None
    scheduled_at: datetime | None
    available_at: datetime | None
    expires_at: datetime | None
    finished_at: datetime | None
    claimed_at: datetime | None
    last_attempt_at: datetime | None
    lease_until: datetime | None
    holder: str | None
    round: int | None
    error: str | None

    @property
    def archived(self) -> bool:
        """Whether it is finished."""
        return self.finished_at is not None

    @property
    def dead(self) -> bool:
        """Whether it is a dead letter."""
        return self.status in DEAD


@dataclasses.dataclass(frozen=True)
class MessagesPage:
    """A page of messages; ``more`` is the last id of the page, or None at the end."""

    messages: Sequence[ShownMessage]
    more: int | None


@dataclasses.dataclass(frozen=True)
class Held:
    """What a consumer holds of a queue.

    Attributes:
        queue: its name.
        count: how many messages, ``AtLeast`` where more were not looked at.
        since: when the oldest of them was claimed, in UTC.
    """

    queue: str
    count: int
    since: datetime | None


def held_of(queue: Queue) -> dict[str, Held]:
    """What each consumer holds of a queue, by its id.

    The index of claimed messages leads to them; ``HELD_LIMIT`` of them are looked at.
    """
    tables = inside.tables(queue)
    c = tables.live.c
    some = select(c.consumer_id, c.claimed_at).where(
        inside.has_status(tables, Status.CLAIMED), *tables.live_only()
    )
    seen = some.limit(HELD_LIMIT + 1).subquery().c
    counted = select(seen.consumer_id, func.count(), func.min(seen.claimed_at))
    wanted = counted.group_by(seen.consumer_id)
    rows = inside.run(queue, lambda connection: connection.execute(wanted).all())
    is_all = sum(row[1] for row in rows) <= HELD_LIMIT
    return {
        row[0]: Held(queue.name, row[1] if is_all else AtLeast(row[1]), optional_instant(row[2]))
        for row in rows
    }


def page_of(
    queue: Queue,
    selection: LiveSelection | ArchiveSelection,
    *,
    limit: int,
    after: int | None,
    newest_first: bool,
) -> MessagesPage:
    """A page of messages without their payloads, by id."""
    archived = isinstance(selection, ArchiveSelection)
    table = queue.archive.table if archived else queue.table
    columns, now = _columns(table), inside.now(queue).label("now")
    rows = inside.rows(
        selection, [*columns, now], limit=limit + 1, after=after, newest_first=newest_first
    )
    found = [_shown(row, queue) for row in rows[:limit]]
    return MessagesPage(found, found[-1].id if len(rows) > limit else None)


def message_of(queue: Queue, message_id: int) -> ShownMessage | None:
    """A live or archived message; None if there is none."""
    for selection, table in (
        (queue.messages(where=queue.table.c.id == message_id), queue.table),
        (
            queue.archive.messages(where=queue.archive.table.c.id == message_id),
            queue.archive.table,
        ),
    ):
        now = inside.now(queue).label("now")
        for row in inside.rows(selection, [*_columns(table), now], limit=1):
            return _shown(row, queue)
    return None


def statuses_of(queue: Queue, ids: Sequence[int]) -> dict[int, str]:
    """The statuses of some messages, live or archived, by id."""
    if not ids:
        return {}
    found: dict[int, str] = {}
    for selection in (
        queue.archive.messages(where=queue.archive.table.c.id.in_(ids)),
        queue.messages(where=queue.table.c.id.in_(ids)),
    ):
        page = page_of(queue, selection, limit=len(ids), after=None, newest_first=True)
        found |= {each.id: each.status for each in page.messages}
    return found


def requeued_soon(service: QueueService, queue: Queue, message_id: int) -> int | None:
    """As ``requeued_as``, but None if it is not found soon: a page is better without a link."""
    try:
        with inside.limited(service, _TIMEOUT):
            return inside.requeued_as(queue, message_id)
    except QueueError:
        return None


def page_alike(
    queue: Queue, fingerprint: str, *, limit: int, after: int | None
) -> tuple[MessagesPage, str]:
    """A page of the dead letters with an error, the newest first; the error of the newest."""
    same = queue.archive.messages(where=inside.having_error(queue, fingerprint))
    page = page_of(queue, same, limit=limit, after=after, newest_first=True)
    error = page.messages[0].error if page.messages else ""
    return page, (error or "").strip().split("\n", 1)[0]


def left_out(queue: Queue) -> str | None:
    """A sentence about the dead letters that are not grouped by their errors now, if any are."""
    if not inside.errors_left_out(queue):
        return None
    if inside.tables(queue).marks_errors:
        return (
            "The errors of older dead letters are still being read, so there may be more. The "
            "reaper goes on with it: look again in a minute."
        )
    return "Only the newest 5,000 dead letters are grouped by error, because the table is adopted."


def _has_payloads(queue: Queue) -> bool:
    # A user's table may have its own column of that name.
    return inside.tables(queue).has_payloads


def error_text(queue: Queue, message: ShownMessage) -> str | None:
    """The whole last error of a message."""
    table = queue.archive.table if message.archived else queue.table
    wanted = select(table.c.last_error).where(table.c.id == message.id)
    found = inside.run(queue, lambda c: c.scalar(wanted))
    return None if found is None else visible(str(found))


def payload_text(queue: Queue, message: ShownMessage, mask: Mask) -> tuple[str, bool]:
    """The payload of a message as text, and whether it is complete."""
    table = queue.archive.table if message.archived else queue.table
    if not _has_payloads(queue):
        return "", True
    content = content_of(queue, table)
    of_it = table.c.id == message.id
    size = inside.run(queue, lambda c: c.scalar(select(func.length(content)).where(of_it))) or 0
    whole = size <= PAYLOAD_LIMIT
    wanted = content if whole else func.substr(content, 1, PAYLOAD_LIMIT // 10)
    found = inside.run(queue, lambda c: c.scalar(select(wanted).where(of_it)))
    if isinstance(found, (bytes, memoryview)):
        if mask and not whole:
            return f"{size:,} bytes: too large to mask its fields, so it is not shown.", False
        content = mask.data(bytes(found))
        return _hex(content, len(content) if mask else size), whole and size <= _HEX_BYTES
    if mask and not whole:
        return f"{size:,} characters: too large to mask its fields, so it is not shown.", False
    is_json = queue.settings.payload == "json" and whole
    return (written(found or "", mask) if is_json else visible(mask.text(found or ""))), whole


def editable_text(queue: Queue, message: ShownMessage, mask: Mask) -> str | None:
    """The payload as text that a form can send back unchanged; None if it cannot be edited so."""
    settings = queue.settings.payload
    if mask or settings == "bytes" or not _has_payloads(queue):
        return None
    table = queue.archive.table if message.archived else queue.table
    content, of_it = content_of(queue, table), table.c.id == message.id
    size = inside.run(queue, lambda c: c.scalar(select(func.length(content)).where(of_it))) or 0
    if size > _EDITABLE:
        return None
    text = str(inside.run(queue, lambda c: c.scalar(select(content).where(of_it))) or "")
    if settings == "json":
        try:
            # What a page cannot show is written as an escape.
            plain = json.dumps(read_exactly(text), indent=2, ensure_ascii=False)
            return plain if visible(plain) == plain else json.dumps(read_exactly(text), indent=2)
        except (ValueError, RecursionError):
            return text if visible(text) == text else None
    return text if visible(text) == text and "\r" not in text else None


def edited_payload(queue: Queue, kind: str | None, text: str) -> Any:
    """The payload that a form sent as text, checked as a publish checks it.

    Raises:
        PayloadInvalid, PayloadTooLarge: it does not fit.
        ValueError: it is not the JSON that it says.
    """
    # Forms send each end of a line so.
    text = text.replace("\r\n", "\n")
    try:
        payload = read_exactly(text) if queue.settings.payload == "json" else text
    except RecursionError as error:
        msg = "The payload is nested too deeply."
        raise ValueError(msg) from error
    except ValueError as error:
        msg = f"The payload is not valid JSON: {error}. Nothing was changed."
        raise ValueError(msg) from error
    inside.check_payload(queue, kind, payload)
    return payload


def difference(queue: Queue, message: ShownMessage, payload: Any, mask: Mask) -> list[str]:
    """The lines of the payload that change, each with ``-`` or ``+`` before it."""
    before = (editable_text(queue, message, mask) or "").splitlines()
    is_json = queue.settings.payload == "json"
    try:
        text = json.dumps(payload, indent=2, ensure_ascii=False) if is_json else str(payload)
    except RecursionError:
        # The payload can be read, but is too deep to be written with indents.
        return []
    lines = difflib.unified_diff(before, visible(text).splitlines(), lineterm="", n=2)
    return [line for line in list(lines)[2:] if not line.startswith("@@")]


def previews_of(
    service: QueueService, queue: Queue, ids: Sequence[int], mask: Mask, *, archived: bool
) -> dict[int, str] | None:
    """How the payloads of some messages begin, by id, each on one line.

    None if they take long, or may be large: the database cuts them, but reads each one whole, and
    SQLite cannot stop meanwhile.
    """
    if not ids or not _has_payloads(queue):
        return {}
    if queue.settings.max_payload_bytes > _PREVIEWED_BYTES:
        return None
    table = queue.archive.table if archived else queue.table
    beginning = func.substr(content_of(queue, table), 1, _PREVIEW_LIMIT + 1)
    wanted = select(table.c.id, beginning).where(table.c.id.in_(ids))
    try:
        with inside.limited(service, _TIMEOUT):
            rows = inside.run(queue, lambda c: c.execute(wanted).all())
    except QueueError:
        return None
    return {row[0]: _preview(row[1], mask, queue.settings.payload) for row in rows}


def _preview(beginning: Any, mask: Mask, payload: str) -> str:
    if mask and len(beginning or "") > _PREVIEW_LIMIT:
        return "(too large to mask its fields)"
    if isinstance(beginning, (bytes, memoryview)):
        text = mask.data(bytes(beginning))[:_PREVIEW_LENGTH].hex(" ", 2)
    else:
        text = str(beginning or "")
        text = text if payload == "json" else mask.text(text)
    if mask and payload == "json":
        try:
            text = json.dumps(mask.apply(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return "(not valid JSON)"
    line = " ".join(text.split())
    more = "…" if len(line) > _PREVIEW_LENGTH else ""
    return visible(line[:_PREVIEW_LENGTH]) + more


def own_columns(queue: Queue, table: Any) -> list[Any]:
    """The queue's own columns; of an adopted table all columns of its owner."""
    tables = inside.tables(queue)
    return [table.c[key] for key in tables.users_columns]


def column_is(queue: Queue, table: Any, name: str, text: str) -> ColumnElement[bool]:
    """The condition for rows whose own column has this value; without a text, for those without.

    Raises:
        ValueError: the queue has no such column, or it cannot have the value.
    """
    own: dict[str, ColumnElement[Any]] = {each.name: each for each in own_columns(queue, table)}
    column = own.get(name)
    if column is None:
        names = ", ".join(own) or "none"
        msg = f"Queue {queue.name} has no column {shown(name, 100)}. Its own columns: {names}."
        raise ValueError(msg)
    if not text:
        return column.is_(None)
    try:
        kind = column.type.python_type
    except NotImplementedError:
        kind = object
    read = next((_READ[each] for each in _READ if issubclass(kind, each)), None)
    if read is None:
        msg = f"Column {name} cannot be searched, because of its type {column.type}."
        raise ValueError(msg)
    try:
        value = read(text)
    except (ValueError, ArithmeticError, KeyError):
        msg = f"Column {name} has the type {column.type}, so it cannot be {shown(text, 100)}."
        raise ValueError(msg) from None
    if isinstance(value, datetime):
        value = value if value.tzinfo else value.replace(tzinfo=UTC)
        is_aware = getattr(column.type, "timezone", False)
        value = value if is_aware else value.astimezone(UTC).replace(tzinfo=None)
    found: ColumnElement[bool] = column == value
    return found


def _whole(text: str) -> int:
    if abs(value := int(text)) > LARGEST:
        raise OverflowError
    return value


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite() or abs(value.adjusted()) > _LARGEST_EXPONENT:
        raise OverflowError
    return value


def _float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise OverflowError
    return value


def _stored(text: str) -> str:
    if not is_storable(text):
        raise ValueError
    return text


_READ: Final[Mapping[type, Callable[[str], Any]]] = {
    bool: lambda text: {"true": True, "1": True, "false": False, "0": False}[text.lower()],
    int: _whole,
    Decimal: _decimal,
    float: _float,
    str: _stored,
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    UUID: UUID,
}
"""How the values of columns are read, by Python type: ``datetime`` is also a ``date``."""


def values_of(
    queue: Queue, ids: Sequence[int], mask: Mask, *, archived: bool, listed: bool = True
) -> dict[int, dict[str, str]]:
    """The values of the own columns of some messages as texts, by id and name.

    Of an adopted table the primary key is left out, because it is the id. In lists only the first
    three are shown, with how they begin.
    """
    table = queue.archive.table if archived else queue.table
    own = [each for each in own_columns(queue, table) if each.key != "id"]
    if listed:
        own = [each for each in own if not isinstance(each.type, LargeBinary)][:_LISTED_COLUMNS]
    if not own or not ids:
        return {}
    most = _PREVIEW_LENGTH if listed else _COLUMN_LENGTH
    cut = [
        func.substr(text_of(each), 1, most + 1) if isinstance(each.type, String) else each
        for each in own
    ]
    wanted = select(table.c.id, *cut).where(table.c.id.in_(ids))
    rows = inside.run(queue, lambda c: c.execute(wanted).all())
    return {
        row[0]: {
            column.name: _value(column.name, value, mask, most)
            for column, value in zip(own, row[1:], strict=True)
        }
        for row in rows
    }


def text_of(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A column of texts as one that functions of texts accept; PostgreSQL's enums are no texts."""
    return cast(column, String) if isinstance(column.type, Enum) else column


def _value(name: str, value: Any, mask: Mask, most: int) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, (bytes, memoryview)):
        content = mask.data(bytes(value))
        return str(mask.apply({name: _hex(content, len(content))})[name])
    if mask and isinstance(value, str) and len(value) > most:
        return "(too large to mask its fields)"
    text = str(mask.apply({name: value})[name])
    return visible(text[:most]) + ("…" if len(text) > most else "")


def content_of(queue: Queue, table: Any) -> Any:
    """The stored payload as a text, or as bytes in a queue of bytes."""
    content = inside.engine(queue).read_payload(table.c.payload)
    if not isinstance(content.type, Text) and queue.settings.payload != "bytes":
        content = cast(content, Text)
    return content


def headers_of(queue: Queue, message: ShownMessage, mask: Mask) -> tuple[str | None, int | None]:
    """The headers of a message as text, and the earlier id of a requeued one; None without them."""
    table = queue.archive.table if message.archived else queue.table
    column = inside.engine(queue).read_payload(table.c.headers)
    found = inside.run(queue, lambda c: c.scalar(select(column).where(table.c.id == message.id)))
    if found is None:
        return None, None
    text = str(found)
    try:
        earlier = json.loads(text).get(REQUEUED_FROM)
    except (ValueError, RecursionError, AttributeError):
        earlier = None
    return written(text, mask), earlier if isinstance(earlier, int) else None


def written(text: str, mask: Mask) -> str:
    """JSON for a page: indented, with masked fields, and numbers unchanged."""
    try:
        text = json.dumps(mask.apply(json.loads(text)), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        if mask:
            return "This is not valid JSON, so its fields cannot be masked and it is not shown."
    return visible(text)


def _hex(content: bytes, size: int) -> str:
    shown = content[:_HEX_BYTES].hex(" ", 2)
    return f"{size:,} bytes\n{shown}{' …' if size > _HEX_BYTES else ''}"


_KEYS: Final = (
    *(
        "message_key",
        "kind",
        "group_key",
        "priority",
        "attempt_count",
        "max_attempts",
        "published_at",
    ),
    *("scheduled_at", "available_at", "claimed_at", "last_attempt_at", "lease_expires_at"),
    *("consumer_id", "consumer_round", "last_error", "expires_at", "finished_at", "outcome"),
)


def _columns(table: Any) -> list[Any]:
    wanted = [table.c.id]
    for key in _KEYS:
        if key not in table.c:
            continue
        column = table.c[key]
        if key == "available_at" and "parked_at" in table.c:
            column = func.coalesce(table.c.parked_at, column)
        if key == "last_error":
            column = func.substr(cast(column, String), 1, _ERROR_CHARACTERS)
        wanted.append(column.label(key))
    return wanted


def _shown(row: Any, queue: Queue) -> ShownMessage:
    facts: Mapping[str, Any] = row._mapping  # noqa: SLF001 - SQLAlchemy's public name
    finished = facts.get("outcome") is not None

    def instant(name: str) -> datetime | None:
        value = facts.get(name)
        return optional_instant(value)

    return ShownMessage(
        id=facts["id"],
        key=facts.get("message_key"),
        kind=facts.get("kind"),
        group=facts.get("group_key"),
        status=str(facts["outcome"] if finished else _status(facts)),
        priority=facts.get("priority") or 0,
        attempts=facts.get("attempt_count") or 0,
        max_attempts=facts.get("max_attempts") or queue.settings.max_attempts,
        published_at=instant("published_at"),
        scheduled_at=instant("scheduled_at"),
        available_at=instant("available_at"),
        expires_at=instant("expires_at"),
        finished_at=instant("finished_at") if finished else None,
        claimed_at=instant("claimed_at"),
        last_attempt_at=instant("last_attempt_at"),
        lease_until=instant("lease_expires_at"),
        holder=facts.get("consumer_id"),
        round=facts.get("consumer_round"),
        error=facts.get("last_error"),
    )


def _status(facts: Mapping[str, Any]) -> Status:
    holder, due = facts.get("consumer_id"), facts.get("available_at")
    return status_at(facts["now"], consumer_id=holder, available_at=due)
