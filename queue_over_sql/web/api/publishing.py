"""Publishing: one message, many messages, or a stream of any length."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql import Publication, inside
from queue_over_sql.errors import DuplicateKey, GroupFull, QueueError
from queue_over_sql.values.checks import check_keyed
from queue_over_sql.values.headers import REPLY_TO
from queue_over_sql.values.options import PUBLISH_OPTIONS
from queue_over_sql.web.api import shapes, showing
from queue_over_sql.web.api.endpoints import IDEMPOTENCY, Call, Endpoints, read_json
from queue_over_sql.web.problems import Problem, problem_of
from queue_over_sql.web.settings import Role

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql import Published, Queue
    from queue_over_sql.values.states import OnConflict

endpoints = Endpoints("publish", quick=True)

_BATCH: Final = 1_000


@endpoints.add(
    "POST",
    "/queues/{queue}/messages",
    Role.PUBLISHER,
    status=201,
    problems=(404, 409, 413),
    idempotent=True,
)
def publish(call: Call, queue: str, body: shapes.NewMessage) -> shapes.PublishedMessage:
    """Publish a message; 200 says that the queue has one with its key.

    With the header `Idempotency-Key` you can send the request again, for 24 hours and even after
    the message is finished: it gets the first answer, and is not published again. The header has
    nothing to do with `key`.
    """
    target = call.service.queue(queue)
    check_keyed(body.on_conflict, body.key)
    items, on_conflict = [publication(call, body, target)], body.on_conflict or "raise"

    def put(connection: Connection | None) -> shapes.PublishedMessage:
        (done,) = target.publish_many(items, on_conflict=on_conflict, connection=connection)
        call.status = 201 if done.outcome == "created" else 200
        return showing.published(done)

    return call.once(put, body, queue=target)


@endpoints.add("POST", "/queues/{queue}/messages/batch", Role.PUBLISHER, problems=(404, 409, 413))
def publish_many(
    call: Call, queue: str, query: shapes.OnConflictQuery, body: shapes.NewMessages
) -> shapes.PublishedMessages:
    """Publish many messages in one transaction: all or none, in the given order."""
    _no_idempotency_key(call)
    done = _put(call, call.service.queue(queue), body, query.on_conflict)
    return shapes.PublishedMessages(messages=[showing.published(each) for each in done])


@endpoints.add(
    "POST",
    "/queues/{queue}/messages/stream",
    Role.PUBLISHER,
    lines_in=True,
    problems=(404, 408, 409, 413),
)
async def publish_stream(
    call: Call, queue: str, query: shapes.OnConflictQuery
) -> shapes.PublishedCount:
    """Publish a stream of messages, one per line of NDJSON.

    Each 1,000 messages are one transaction. In a problem, `line` is the refused line, and
    `published` is the number of messages published before. With keys and `on_conflict=skip` you can
    send everything again.
    """
    _no_idempotency_key(call)
    threads, limit = call.api.threads, call.api.settings.max_body_bytes
    target = await threads.run_quick(lambda: call.service.queue(queue))
    counts: Counter[str] = Counter()
    batch: list[shapes.NewMessage] = []
    numbers: list[int] = []
    size, number = 0, 0

    async def put() -> None:
        nonlocal number
        try:
            done = await threads.run_quick(lambda: _put(call, target, batch, query.on_conflict))
        except (Problem, QueueError, ValueError, TypeError) as error:
            about = error
            refused = await threads.run_quick(lambda: _refused(call, target, batch, about))
            number = numbers[refused]
            raise
        counts.update(each.outcome.value for each in done)
        batch.clear()
        numbers.clear()

    try:
        async for number, line in call.lines(limit):
            batch.append(read_json(line, shapes.NewMessage))
            numbers.append(number)
            size += len(line)
            if len(batch) >= _BATCH or size >= limit:
                await put()
                size = 0
        if batch:
            await put()
    except (Problem, QueueError, ValueError, TypeError, TimeoutError) as error:
        problem = problem_of(error)
        more = {"line": number, "published": counts.total()} | problem.more
        raise Problem(problem.status, problem.code, problem.text, **more) from error
    outcomes = ("created", "skipped", "replaced", "unchanged")
    return shapes.PublishedCount(count=counts.total(), **{name: counts[name] for name in outcomes})


def publication(call: Call, given: shapes.NewMessage, queue: Queue) -> Publication:
    """Convert a message for the core.

    Raises:
        Problem: its payload does not match its encoding, or its replies would go to a queue that
            the caller may not use.
    """
    reply_to = (given.headers or {}).get(REPLY_TO)
    if isinstance(reply_to, str):
        call.insist_on(reply_to)
    options = {name: getattr(given, name) for name in PUBLISH_OPTIONS}
    return Publication(read_payload(given.payload, given.payload_encoding, queue), **options)


def read_payload(payload: Any, encoding: str | None, queue: Queue) -> Any:
    """Decode a payload that is plain JSON, Base64, or text that contains JSON.

    Raises:
        Problem: it does not match its encoding, or the queue does not accept such payloads.
    """
    kind = queue.settings.payload
    if encoding is None and kind == "bytes":
        text = "The queue has bytes payloads: send them in Base64, with payload_encoding: base64."
        raise Problem(422, "not-valid", text)
    if encoding is None:
        return payload
    if not isinstance(payload, str) or (encoding == "base64") != (kind == "bytes"):
        text = f"A queue of {kind} does not accept such a payload with payload_encoding {encoding}."
        raise Problem(422, "not-valid", text)
    if encoding == "json":
        return read_json(payload.encode("utf-8", "surrogatepass"), Any)
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Problem(422, "not-valid", f"The payload is not Base64: {error}.") from error


def _put(
    call: Call, queue: Queue, given: list[shapes.NewMessage], on_conflict: OnConflict
) -> list[Published]:
    if any(each.on_conflict is not None for each in given):
        text = "Here on_conflict is a query parameter, which applies to all messages."
        raise Problem(422, "not-valid", text)
    items = [publication(call, each, queue) for each in given]
    return queue.publish_many(items, on_conflict=on_conflict)


def _no_idempotency_key(call: Call) -> None:
    if IDEMPOTENCY in call.request.headers:
        text = "Idempotency-Key is for one message. Use a key in each message and on_conflict=skip."
        raise Problem(422, "not-valid", text)


def _refused(call: Call, queue: Queue, given: list[shapes.NewMessage], error: Exception) -> int:
    # The position of the refused message; of the last one if it is not known.
    if isinstance(error, GroupFull):
        return error.place or 0
    found = [at for at, each in enumerate(given) if _is_refused(call, queue, each, error)] or [-1]
    # If a key occurs twice, the second message is the refused one.
    return found[-1 if isinstance(error, DuplicateKey) else 0]


def _is_refused(call: Call, queue: Queue, given: shapes.NewMessage, error: Exception) -> bool:
    if isinstance(error, DuplicateKey):
        return given.key == error.key
    try:
        wanted = publication(call, given, queue)
        return given.on_conflict is not None or inside.is_refused(queue, wanted)
    except Problem:
        return True
