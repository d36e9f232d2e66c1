"""Messages: find, show, edit, cancel and remove them, and requeue finished ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from queue_over_sql import Reason, inside
from queue_over_sql.web.api import shapes, showing
from queue_over_sql.web.api.endpoints import Call, Endpoints, Lines, read_json
from queue_over_sql.web.api.publishing import read_payload
from queue_over_sql.web.changes import Choice, Result, message_id
from queue_over_sql.web.problems import Problem
from queue_over_sql.web.settings import Role

if TYPE_CHECKING:
    from queue_over_sql import Queue, Selection

endpoints = Endpoints("messages")
archive_endpoints = Endpoints("archive")


@endpoints.add("GET", "/queues/{queue}/messages", Role.VIEWER, lines_out=True, problems=(404,))
def list_messages(call: Call, queue: str, query: shapes.MessageQuery) -> shapes.MessagePage | Lines:
    """List live messages by id.

    A page may end early if its payloads are large: continue while `next` is not null. With `Accept:
    application/x-ndjson` each line is a message, and the limit is 1,000,000.
    """
    _check_live(query.error)
    return _page(call, query, call.service.queue(queue), archived=False)


@endpoints.add("GET", "/queues/{queue}/messages/{id}", Role.VIEWER, problems=(404,))
def show_message(call: Call, queue: str, id: str) -> shapes.MessageStory:  # noqa: A002 - in the path
    """Show one live or finished message and its history."""
    target, number = call.service.queue(queue), read_id(id)
    for archived, place in ((False, target), (True, target.archive)):
        where = place.table.c.id == number
        found = place.messages(where=where).first()
        if found is not None:
            trace = target.last_traceback(number)
            trace = None if trace is None else call.api.mask.text(trace)
            shown = showing.message(found, call.api.mask)
            told = [showing.attempt(each, call.api.mask) for each in target.attempts(number)]
            return shapes.MessageStory(
                message=shown, archived=archived, last_traceback=trace, attempts=told
            )
    raise Problem(404, "message-not-found", f"Queue {queue} has no message {number}.")


@endpoints.add("GET", "/queues/{queue}/messages/{id}/why", Role.VIEWER, problems=(404,))
def explain_message(call: Call, queue: str, id: str) -> shapes.Explanation:  # noqa: A002 - in the path
    """Say why a message does not run, and what to do about it."""
    found = call.service.queue(queue).why(read_id(id))
    if found.reason is Reason.MISSING:
        raise Problem(404, "message-not-found", found.text)
    return showing.explanation(found, call.api.mask)


@endpoints.add("POST", "/queues/{queue}/messages/count", Role.VIEWER, writes=False, problems=(404,))
def count_messages(call: Call, queue: str, body: shapes.Filter) -> shapes.Count:
    """Count matching live messages, for `at_most` of an edit."""
    _check_live(body.error)
    return shapes.Count(count=_filtered(call, body).matching(call.service.queue(queue)).count())


# -- archive


@archive_endpoints.add(
    "GET", "/queues/{queue}/archive", Role.VIEWER, lines_out=True, problems=(404,)
)
def list_archive(call: Call, queue: str, query: shapes.MessageQuery) -> shapes.MessagePage | Lines:
    """List finished messages by id, like live ones."""
    return _page(call, query, call.service.queue(queue), archived=True)


@archive_endpoints.add(
    "POST", "/queues/{queue}/archive/count", Role.VIEWER, writes=False, problems=(404,)
)
def count_archive(call: Call, queue: str, body: shapes.Filter) -> shapes.Count:
    """Count matching finished messages."""
    found = _filtered(call, body).matching_archived(call.service.queue(queue))
    return shapes.Count(count=found.count())


@archive_endpoints.add("GET", "/queues/{queue}/errors", Role.VIEWER, problems=(404,))
def list_errors(call: Call, queue: str, query: shapes.ErrorQuery) -> shapes.ErrorList:
    """List the errors of dead letters, the one that came last first.

    Errors that differ only in numbers, ids, addresses or quoted values are one. The newest 10,000
    dead letters of each outcome are counted.
    """
    found = inside.errors(call.service.queue(queue), limit=query.limit)
    return shapes.ErrorList(errors=[showing.error(each, call.api.mask) for each in found])


# -- inner


def read_id(given: str | int) -> int:
    """Parse the id of a message.

    Raises:
        Problem: it is not an id.
    """
    text = str(given)
    if (number := message_id(text)) is None:
        raise Problem(422, "not-valid", f"{text[:50]!r} is not a message id.")
    return number


def _page(
    call: Call, query: shapes.MessageQuery, queue: Queue, *, archived: bool
) -> shapes.MessagePage | Lines:
    columns = None if query.columns is None else _read_fields("columns", query.columns)
    fields = None if query.payload is None else _read_fields("payload", query.payload)
    chosen = _choice(call, query, fields, columns)
    found: Selection = chosen.matching_archived(queue) if archived else chosen.matching(queue)
    mask, as_text = call.api.mask, query.payload_encoding == "json"
    if call.wants_lines:

        def lines() -> Iterator[list[Any]]:
            for part in showing.pages(found, query.limit, query.after):
                yield showing.messages(part, mask, as_text=as_text)[0]

        return Lines(lines())
    if query.limit > shapes.MOST_LISTED:
        text = f"limit must be at most {shapes.MOST_LISTED}, unless you request NDJSON."
        raise Problem(422, "not-valid", text)
    messages, more = showing.one_page(found, query.limit, query.after)
    shown, unreadable = showing.messages(messages, mask, as_text=as_text)
    return shapes.MessagePage(
        messages=shown,
        unreadable=unreadable,
        next=str(messages[-1].id) if more and messages else None,
    )


def _read_fields(name: str, text: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = read_json(text.encode("utf-8", "replace"), dict[str, Any])
    except Problem as error:
        raise Problem(422, "not-valid", f"Query parameter {name}: {error.text}") from error
    return fields


def _check_live(error: str | None) -> None:
    if error is not None:
        raise Problem(422, "not-valid", "Only dead letters are chosen by their error.")


def _filtered(call: Call, given: shapes.Filter) -> Choice:
    return _choice(call, given, given.payload, given.columns)


def _choice(
    call: Call,
    given: shapes.Filter | shapes.MessageQuery,
    fields: Mapping[str, Any] | None,
    columns: Mapping[str, Any] | None,
) -> Choice:
    _check_masked(call, {**(fields or {}), **(columns or {})})
    filters = {"status": given.status, "key": given.key, "kind": given.kind}
    filters |= {"group": given.group}
    texts = {name: _as_text(name, value) for name, value in (columns or {}).items()}
    found = {**filters, "payload": fields or None}
    same = None if given.error is None else call.api.mask.opened(given.error)
    return Choice(filters=found, columns=texts, error=same)


def _as_text(name: str, value: Any) -> str:
    if value == "":
        raise Problem(
            422,
            "not-valid",
            f"columns: {name[:100]} cannot be compared with an empty text. null finds messages "
            "without a value.",
        )
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str | int | float | Decimal):
        return "" if value is None else str(value)
    raise Problem(422, "not-valid", f"columns: the value of {name[:100]} is an object or an array.")


def _edit(call: Call, queue: str, body: shapes.SelectedMessages) -> shapes.Edited:
    names = set(body.__struct_fields__) - set(shapes.SelectedMessages.__struct_fields__)
    arguments = {name: getattr(body, name) for name in names}
    return _edited(call.do(queue, choice=_selected(call, body), **arguments))


def _requeue(call: Call, queue: str, body: shapes.Requeue) -> shapes.Edited:
    choice, more = _selected(call, body), dict[str, Any]()
    if body.payload is not UNSET:
        if len(choice.ids) != 1:
            raise Problem(422, "not-valid", "payload is for exactly one message: give one id.")
        target = call.service.queue(queue)
        more["payload"] = read_payload(body.payload, body.payload_encoding, target)
    return _edited(call.do(queue, choice=choice, **more))


def _cancel(call: Call, queue: str, body: shapes.Cancel) -> shapes.Edited:
    choice = Choice([read_id(each) for each in body.ids])
    return _edited(call.do(queue, choice=choice, reason=body.reason))


def _edited(done: Result) -> shapes.Edited:
    return shapes.Edited(changed=done.count or 0, skipped=done.skipped)


def _selected(call: Call, given: shapes.SelectedMessages) -> Choice:
    if (given.ids is None) == (given.filter is None):
        raise Problem(422, "not-valid", "Give either ids or filter.")
    if given.filter is None:
        return Choice(sorted({read_id(each) for each in given.ids or ()}))
    if given.at_most is None:
        text = (
            "With a filter, set at_most to the number of messages that may be changed. See …/count."
        )
        raise Problem(422, "not-valid", text)
    return dataclasses.replace(_filtered(call, given.filter), at_most=given.at_most)


def _check_masked(call: Call, fields: Mapping[str, Any]) -> None:
    hidden = [path for path, value in fields.items() if call.api.mask.hides(path, value)]
    if hidden:
        text = f"{hidden[0]} is masked, so you cannot search by it."
        raise Problem(403, "masked", text)


endpoints.operation("hold", _edit)
endpoints.operation("unhold", _edit)
endpoints.operation("reschedule", _edit, shape=shapes.Reschedule)
endpoints.operation("prioritize", _edit, shape=shapes.Prioritize)
endpoints.operation("remove", _edit)
endpoints.operation("cancel", _cancel)
endpoints.operation("max-attempts", _edit, shape=shapes.MaxAttempts)
archive_endpoints.operation("requeue", _requeue, shape=shapes.Requeue)
archive_endpoints.operation("remove-archived", _edit)
