"""Claims: claim and settle messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from queue_over_sql import Queue
from queue_over_sql.errors import QueueError
from queue_over_sql.web.api import shapes, showing
from queue_over_sql.web.api.endpoints import Call, Endpoints
from queue_over_sql.web.masking import Mask
from queue_over_sql.web.problems import Problem
from queue_over_sql.web.settings import Role

if TYPE_CHECKING:
    from queue_over_sql import Message
    from queue_over_sql.web.api.clients import ClientQueue

endpoints = Endpoints("claim and settle", quick=True)

_UNMASKED = Mask(())


@endpoints.add("POST", "/queues/{queue}/claim", Role.OPERATOR, problems=(404,))
async def claim(call: Call, queue: str, body: shapes.ClaimRequest) -> shapes.Claimed:
    """Claim messages: nobody else gets them until they are settled or the lease ends.

    With `wait` the answer comes as soon as there is a message. A client that disconnects before the
    answer gets no messages. If a client dies later, its lease ends and the messages are delivered
    again. A server that masks fields shows them here, so it refuses people who signed in, and notes
    each hour in the audit which token claims.
    """
    clients, threads = call.api.clients, call.api.threads
    if call.api.mask:
        if call.principal.way != "token":
            text = "This web server masks fields, and a claim would show them. Send a token."
            raise Problem(403, "masked", text)
        await threads.run_quick(lambda: call.api.changes.note_claims(call.principal, queue))
    wait = min(body.wait, call.api.settings.longest_wait)
    target = await threads.run_quick(lambda: clients.queue(queue))
    messages: list[Message] = []
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await call.request.receive())["type"] != "http.disconnect":
            pass
        gone = True
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            messages = await clients.claim(target, body.count, body.lease, wait)
            group.cancel_scope.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    if gone and messages:
        with anyio.CancelScope(shield=True):
            await threads.run_quick(lambda: target.give_back(messages))
        messages = []
    as_text = body.payload_encoding == "json"
    return shapes.Claimed(
        messages=await threads.run_quick(lambda: _shown(target, messages, as_text=as_text))
    )


def _shown(
    target: ClientQueue, messages: list[Message], *, as_text: bool
) -> list[shapes.ClaimedMessage]:
    found = []
    for message in messages:
        try:
            found.append(showing.claimed(message, _UNMASKED, as_text=as_text))
        except QueueError as error:
            with contextlib.suppress(QueueError):
                target.queue.nack([message], error=str(error))
    return found


@endpoints.add("POST", "/queues/{queue}/ack", Role.OPERATOR, problems=(404, 409))
def ack(call: Call, queue: str, body: shapes.Ack) -> shapes.Settled:
    """Finish messages.

    409 lists the claims that are lost, because their lease has ended or they were settled before.
    All others were settled. This applies to all verbs that settle.
    """
    return _settled(call, queue, body.claims, Queue.ack)


@endpoints.add("POST", "/queues/{queue}/nack", Role.OPERATOR, problems=(404, 409))
def nack(call: Call, queue: str, body: shapes.Nack) -> shapes.Settled:
    """Report failures: messages are retried later, or become dead letters if out of attempts."""
    return _settled(
        call,
        queue,
        body.claims,
        lambda held, found: held.nack(found, error=body.error, delay=body.delay),
    )


@endpoints.add("POST", "/queues/{queue}/release", Role.OPERATOR, problems=(404, 409))
def release(call: Call, queue: str, body: shapes.Release) -> shapes.Settled:
    """Return messages to the queue; this delivery is not counted."""
    return _settled(
        call, queue, body.claims, lambda held, found: held.release(found, delay=body.delay)
    )


@endpoints.add("POST", "/queues/{queue}/reject", Role.OPERATOR, problems=(404, 409))
def reject(call: Call, queue: str, body: shapes.Reject) -> shapes.Settled:
    """Make dead letters of messages: they are not delivered again."""
    return _settled(call, queue, body.claims, lambda held, found: held.reject(found, body.reason))


@endpoints.add("POST", "/queues/{queue}/extend", Role.OPERATOR, problems=(404, 409))
def extend(call: Call, queue: str, body: shapes.Extend) -> shapes.Settled:
    """Renew leases; the new length counts from now."""
    return _settled(call, queue, body.claims, lambda held, found: held.extend(found, body.lease))


def _settled(
    call: Call,
    queue: str,
    tokens: list[str],
    do: Callable[[Queue, list[Message]], None],
) -> shapes.Settled:
    target = call.api.clients.queue(queue)
    tokens = list(dict.fromkeys(tokens))
    lost = target.settle(tokens, lambda messages: do(target.queue, messages))
    settled = len(tokens) - len(lost)
    if lost:
        text = (
            "The claims in `lost` no longer hold their messages: their leases expired, or the "
            "messages were already settled. The others were settled."
        )
        raise Problem(409, "claim-lost", text, lost=lost, settled=settled)
    return shapes.Settled(settled=settled)
