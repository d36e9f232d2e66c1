"""Showing: messages and other objects of the core in the shapes of the API."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from queue_over_sql import inside
from queue_over_sql.errors import QueueError, visible
from queue_over_sql.values.durations import instant
from queue_over_sql.values.json_lines import in_base64, to_json
from queue_over_sql.web.api import shapes
from queue_over_sql.web.api.endpoints import check_depth
from queue_over_sql.web.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql import (
        Attempt,
        ConsumerInfo,
        EffectiveSettings,
        Explanation,
        GroupInfo,
        Message,
        Schedule,
        Selection,
        Subscription,
    )
    from queue_over_sql import Published as PublishedCore
    from queue_over_sql.web.masking import Mask

_log = logging.getLogger(__name__)

_SHOWN_OTHERWISE: Final = {
    "id",
    "payload",
    "payload_encoding",
    "headers",
    "columns",
    "status",
    "outcome",
}
_FACTS: Final = tuple(
    name for name in shapes.Message.__struct_fields__ if name not in _SHOWN_OTHERWISE
)
# A page ends when its payloads reach about this many bytes, even before its limit.
_PAGE_BYTES: Final = 8 * 1024 * 1024
_FIRST_READ, _LARGEST_READ = 20, 500


def message(found: Message, mask: Mask, *, as_text: bool = False) -> shapes.Message:
    """A message for a viewer, with masked fields."""
    return shapes.Message(**_message(found, mask, as_text=as_text))


def messages(
    found: list[Message], mask: Mask, *, as_text: bool
) -> tuple[list[shapes.Message], list[str]]:
    """Messages for a viewer, and the ids of rows that cannot be read."""
    shown, unreadable = [], []
    for each in found:
        try:
            shown.append(message(each, mask, as_text=as_text))
        except QueueError as error:
            _log.warning(
                "Message %d of queue %s is left out of the list: %s", each.id, each.queue, error
            )
            unreadable.append(str(each.id))
    return shown, unreadable


def claimed(found: Message, mask: Mask, *, as_text: bool = False) -> shapes.ClaimedMessage:
    """A message for the client that claimed it, without masking."""
    return shapes.ClaimedMessage(**_message(found, mask, as_text=as_text), claim=found.token)


def _message(found: Message, mask: Mask, *, as_text: bool) -> dict[str, Any]:
    payload, encoding = _payload(found, mask, as_text=as_text)
    outcome = inside.row_of(found).outcome
    return {
        "id": str(found.id),
        "payload": payload,
        "payload_encoding": encoding,
        "headers": mask.apply(found.headers),
        "columns": mask.apply(dict(found.columns)),
        "status": found.status if outcome is None else outcome,
        "outcome": outcome,
        **{name: getattr(found, name) for name in _FACTS},
        "last_error": None if found.last_error is None else mask.text(found.last_error),
    }


def _payload(found: Message, mask: Mask, *, as_text: bool) -> tuple[Any, Any]:
    payload = found.payload if found.row is None else dict(found.row)
    if isinstance(payload, bytes):
        return in_base64(mask.data(payload)), "base64"
    stored = inside.row_of(found).payload
    if isinstance(payload, str) and payload is stored:
        # A text payload, or an unreadable one.
        return mask.text(payload), UNSET
    if isinstance(stored, str):
        try:
            check_depth(stored.encode("utf-8", "replace"))
        except Problem:
            return (stored if not mask else "…"), "json"
    shown = mask.apply(payload)
    return (to_json(shown), "json") if as_text else (shown, UNSET)


def pages(
    selection: Selection, limit: int, after: int | None, size: int = _PAGE_BYTES
) -> Iterator[list[Message]]:
    """Messages by id, in parts of about this many bytes."""
    wanted = _FIRST_READ
    while limit > 0:
        count = min(wanted, limit)
        page = selection.list(count, after)
        if page:
            yield page
        if len(page) < count:
            return
        limit, after = limit - len(page), page[-1].id
        average = max(1, _bytes_of(page) // len(page))
        wanted = max(1, min(_LARGEST_READ, 2 * wanted, size // average))


def one_page(selection: Selection, limit: int, after: int | None) -> tuple[list[Message], bool]:
    """Messages by id up to a number and a size, and whether there may be more."""
    found: list[Message] = []
    taken = 0
    for part in pages(selection, limit, after):
        found += part
        taken += _bytes_of(part)
        if taken >= _PAGE_BYTES:
            return found, True
    return found, len(found) == limit


def _bytes_of(page: list[Message]) -> int:
    stored = (inside.row_of(each).payload for each in page)
    return sum(len(each) for each in stored if isinstance(each, str | bytes))


def attempt(found: Attempt, mask: Mask) -> shapes.Attempt:
    """A failed attempt for a viewer, with masked fields."""
    fields = {name: getattr(found, name) for name in shapes.Attempt.__struct_fields__}
    for name in ("error", "traceback"):
        fields[name] = None if fields[name] is None else mask.text(fields[name])
    return shapes.Attempt(**fields)


def explanation(found: Explanation, mask: Mask) -> shapes.Explanation:
    """Why a message does not run."""
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    holder = None if found.consumer is None else consumer(found.consumer)
    return shapes.Explanation(
        **fields
        | {"message_id": str(found.message_id), "reason": found.reason.value, "consumer": holder}
        | {"text": mask.text(found.text)}
        | {"waits_for": None if found.waits_for is None else str(found.waits_for)}
    )


def error(found: inside.ErrorGroup, mask: Mask) -> shapes.DeadError:
    """An error of dead letters."""
    return shapes.DeadError(
        fingerprint=mask.sealed(found.fingerprint),
        error=mask.text(visible(found.error)),
        kind=found.kind,
        count=found.count,
        more=found.more,
        first_at=instant(found.first_at),
        last_at=instant(found.last_at),
        message_id=str(found.message_id),
        hours=list(found.hours),
    )


def group(found: GroupInfo) -> shapes.GroupInfo:
    """A group of messages."""
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    age = found.oldest_age
    return shapes.GroupInfo(
        **fields
        | {
            "state": found.state.value,
            "oldest_age": None if age is None else age.total_seconds(),
            "head": None if found.head is None else str(found.head),
            "blocked_by": None if found.blocked_by is None else str(found.blocked_by),
            "consumer_ids": list(found.consumer_ids),
        }
    )


def consumer(found: ConsumerInfo) -> shapes.ConsumerInfo:
    """A registered consumer."""
    names = set(shapes.ConsumerInfo.__struct_fields__) - {"expires_at", "handles"}
    facts = {name: getattr(found, name) for name in names}
    until = None if found.never_expires else found.expires_at
    handles = [
        shapes.HandledQueue(
            queue=each.queue,
            concurrency=each.concurrency,
            kinds=None if each.kinds is None else list(each.kinds),
        )
        for each in found.handles
    ]
    return shapes.ConsumerInfo(**facts, expires_at=until, handles=handles)


def published(found: PublishedCore) -> shapes.PublishedMessage:
    """The result of a publish."""
    queue = UNSET if found.queue is None else found.queue
    return shapes.PublishedMessage(id=str(found.id), outcome=found.outcome.value, queue=queue)


def queue(
    name: str, settings: EffectiveSettings, retry: dict[str, Any], *, paused: bool
) -> shapes.Queue:
    """A queue and its settings."""
    fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    adoption = fields.pop("adoption")
    plain = {setting: _plain(value) for setting, value in fields.items()}
    return shapes.Queue(
        **plain
        | {
            "name": name,
            "paused": paused,
            "retry": retry,
            "columns": [column.name for column in settings.columns],
            "table": None if adoption is None else adoption.where,
        }
    )


def schedule(found: Schedule, mask: Mask) -> shapes.Schedule:
    """A schedule."""
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    binary = isinstance(found.payload, bytes)
    return shapes.Schedule(
        **fields
        | {
            "payload": _of_schedule(found.payload, mask),
            "payload_encoding": "base64" if binary else UNSET,
            "every": None if found.every is None else found.every.total_seconds(),
            "options": mask.apply(_plain(found.options)),
            "last_runs": [
                shapes.ScheduleRun(at=at, id=str(number)) for at, number in found.last_runs.items()
            ],
        }
    )


def _of_schedule(payload: Any, mask: Mask) -> Any:
    if isinstance(payload, bytes):
        return in_base64(mask.data(payload))
    return mask.text(payload) if isinstance(payload, str) else mask.apply(payload)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return value.total_seconds() if isinstance(value, timedelta) else value


def subscription(found: Subscription, mask: Mask) -> shapes.Subscription:
    """A subscription."""
    return shapes.Subscription(
        queue=found.queue,
        pattern=found.pattern,
        where=None if found.where is None else mask.apply(dict(found.where)),
        created_at=found.created_at,
    )
