"""Requests with an Idempotency-Key: the same request again gets its first answer."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, select, update

from queue_over_sql import inside
from queue_over_sql.errors import QueueError
from queue_over_sql.values.durations import MICROSECOND
from queue_over_sql.web.problems import Problem

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.web.settings import WebSettings
    from queue_over_sql.web.tables import WebStore

_log = logging.getLogger(__name__)

LONGEST_KEY: Final = 200
_PRUNE_EVERY: Final = 100
_PRUNED_AT_ONCE: Final = 1_000


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to a request that was done.

    Attributes:
        status: its HTTP status.
        body: its body, as JSON.
        again: whether an earlier request got it first.
    """

    status: int
    body: str
    again: bool = False


class _SentBefore(QueueError):
    """A request with this key is there, so the transaction of this one is undone."""


class Idempotency:
    """Does each request once, and remembers its answer. Any thread may use it.

    The row of a request is written in the transaction that does it. So a request is done if and
    only if it is remembered, and equal ones that come at the same time wait for the first. What is
    refused changes nothing, and is not remembered.

    Args:
        service: the service with the queues.
        store: the tables of the web package.
        settings: of the server.
    """

    def __init__(self, service: QueueService, store: WebStore, settings: WebSettings) -> None:
        self._service = service
        self._store = store
        self._prefix = inside.settings(service).table_prefix
        self._keeps = timedelta(hours=settings.idempotency_hours) // MICROSECOND
        self._done = itertools.count(1)

    def once(
        self,
        key: str,
        scope: Sequence[str],
        body: str,
        do: Callable[[Connection], Answer],
        queue: Queue | None = None,
    ) -> Answer:
        """Do a request, or return the answer that it got before.

        Args:
            key: the client's Idempotency-Key.
            scope: where the key counts.
            body: the request as text, the same for equal requests.
            do: does it in a transaction; it may run again after a deadlock.
            queue: the queue that it publishes to, if it is only one.

        Raises:
            Problem: the key is not valid, another request had it, or the table is missing.
            Exception: what ``do`` raises; then nothing was done.
        """
        if not 1 <= len(key) <= LONGEST_KEY:
            text = f"Idempotency-Key must have 1 to {LONGEST_KEY} characters."
            raise Problem(422, "not-valid", text)
        if self._store.no_requests is not None:
            raise Problem(503, "no-request-table", self._store.no_requests)
        since = None if queue is None else self._created(queue)
        asked = _hash(json.dumps([*scope, since, key])), _hash(body)

        def first(connection: Connection) -> Answer:
            now = inside.engine(self._service).read_clock(connection)
            row = {
                "table_prefix": self._prefix,
                "request_hash": asked[0],
                "body_hash": asked[1],
                "expires_at": now + self._keeps,
            }
            table = self._store.tables.requests
            if not inside.insert_unless_there(self._service, connection, table, row):
                raise _SentBefore(key)
            answer = do(connection)
            kept = {"status": answer.status, "answer": answer.body}
            connection.execute(update(table).where(self._is(asked[0])).values(kept))
            return answer

        while True:
            try:
                target = self._service if queue is None else queue
                answer = inside.run(target, first, atomic=True, durable=True)
            except _SentBefore:
                found = self._first_answer(*asked)
                if found is not None:
                    return found
            else:
                if queue is not None:
                    inside.wake_consumers(queue)
                self._prune_sometimes()
                return answer

    def _first_answer(self, request: str, body: str) -> Answer | None:
        # None if it was sent so long ago that it is forgotten.
        table = self._store.tables.requests
        c = table.c
        asked = select(c.body_hash, c.status, c.answer, c.expires_at).where(self._is(request))
        row = inside.run(self._service, lambda connection: connection.execute(asked).first())
        now = inside.read_clock(self._service)
        if row is None:
            return None
        if row.expires_at <= now:
            gone = delete(table).where(self._is(request), c.expires_at <= now)
            inside.run(self._service, lambda connection: connection.execute(gone).close())
            return None
        if row.body_hash != body:
            text = (
                "An earlier request with this Idempotency-Key had another body, so nothing was "
                "published. Send a new key with each new request."
            )
            raise Problem(422, "idempotency-key-reused", text)
        return Answer(row.status, row.answer, again=True)

    def _created(self, queue: Queue) -> int | None:
        # A queue that was dropped and created again has none of the messages of the first one.
        c = inside.system(self._service).queues.c
        asked = select(c.created_at).where(c.table_prefix == self._prefix, c.name == queue.name)
        return inside.run(self._service, lambda connection: connection.execute(asked).scalar())

    def _is(self, request: str) -> ColumnElement[bool]:
        c = self._store.tables.requests.c
        return (c.table_prefix == self._prefix) & (c.request_hash == request)

    def _prune_sometimes(self) -> None:
        if next(self._done) % _PRUNE_EVERY == 0:
            try:
                self.prune()
            except QueueError as error:
                _log.warning("Old Idempotency-Keys could not be removed: %s", error)

    def prune(self) -> int:
        """Forget requests that are too old, at most 1,000; returns how many."""
        table = self._store.tables.requests
        c, now = table.c, inside.read_clock(self._service)
        mine = c.table_prefix == self._prefix
        old = select(c.request_hash).where(mine, c.expires_at <= now).limit(_PRUNED_AT_ONCE)

        def prune(connection: Connection) -> int:
            found = list(connection.execute(old).scalars())
            gone = delete(table).where(mine, c.request_hash.in_(found), c.expires_at <= now)
            return connection.execute(gone).rowcount if found else 0

        return inside.run(self._service, prune)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
