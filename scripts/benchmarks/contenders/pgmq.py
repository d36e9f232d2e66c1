"""pgmq on PostgreSQL: its SQL, installed from the package of its Python client.

The client gets one autocommit connection, so each call is one round trip; its own pool would add a
begin and a commit. pgmq has no worker. It waits by ``LISTEN`` with its notifications enabled, here
without their default pause of 250 ms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pgmq
import psycopg
from psycopg.errors import QueryCanceled

from scripts.benchmarks.contenders.peer import QUEUE, PostgresqlPeer
from scripts.benchmarks.contenders.serving import number_of, serve

_CHANNEL = f"pgmq.q_{QUEUE}.INSERT"
_GROUPS = "groups"
_SEND_BATCH = "SELECT pgmq.send_batch(%s, %s::jsonb[], %s::jsonb[])"
_AT_ONCE = 1000
_VISIBILITY = 300


class Pgmq(PostgresqlPeer):
    """A claim is a visibility timeout; a consumer that lost it can still delete the message."""

    name = "pgmq"
    left = f"SELECT count(*) FROM pgmq.q_{QUEUE}"
    ready = f"SELECT count(*) FROM pgmq.q_{QUEUE} WHERE vt <= clock_timestamp()"

    @property
    def version(self) -> str:
        """The versions of its SQL, and of the client that includes it."""
        return f"{pgmq.get_embedded_sql_version()} (client {pgmq.__version__})"

    def content(self, payload: str) -> Any:
        """The client writes JSON itself."""
        return json.loads(payload)

    def prepare(self) -> None:
        """Install its SQL, create a queue."""
        pgmq.install_pgmq_from_sql(dsn=self.url)
        with psycopg.connect(self.url, autocommit=True) as connection:
            self._client().create_queue(QUEUE, conn=connection)

    def open(self) -> None:
        """One connection in autocommit, warmed up by reading the queue's metrics."""
        self._connection = psycopg.connect(self.url, autocommit=True)
        self._pgmq = self._client()
        self._pgmq.metrics(QUEUE, conn=self._connection)

    def _client(self) -> Any:
        return pgmq.PGMQueue(conn_string=self.url, init_extension=False)

    def publish(self, payloads: list[Any], batch: int) -> None:
        """By ``send`` or ``send_batch``."""
        if batch == 1:
            for payload in payloads:
                self._pgmq.send(QUEUE, payload, conn=self._connection)
            return
        for start in range(0, len(payloads), batch):
            self._pgmq.send_batch(QUEUE, payloads[start : start + batch], conn=self._connection)

    def consume(self, batch: int, count: int) -> list[int]:
        """By ``read`` and ``delete``, or ``delete_batch``."""
        numbers: list[int] = []
        while len(numbers) < count and (messages := self._read(batch)):
            self._delete(messages)
            numbers += [number_of(message.message) for message in messages]
        return numbers

    def _read(self, batch: int) -> list[Any]:
        messages: list[Any] = self._pgmq.read_batch(QUEUE, batch_size=batch, conn=self._connection)
        return messages

    def _delete(self, messages: list[Any]) -> None:
        if len(messages) == 1:
            self._pgmq.delete(QUEUE, messages[0].msg_id, conn=self._connection)
        else:
            ids = [message.msg_id for message in messages]
            self._pgmq.delete_batch(QUEUE, ids, conn=self._connection)

    def prepare_groups(self) -> None:
        """A queue with the index that its documentation has for groups."""
        self._pgmq.create_queue(_GROUPS, conn=self._connection)
        self._connection.execute("SELECT pgmq.create_fifo_index(%s)", (_GROUPS,))

    def publish_groups(self, payloads: list[Any], groups: list[str]) -> None:
        """By ``send_batch``; a header names the group."""
        texts = [json.dumps(payload) for payload in payloads]
        headers = [json.dumps({"x-pgmq-group": name}) for name in groups]
        for start in range(0, len(texts), _AT_ONCE):
            end = start + _AT_ONCE
            values = (_GROUPS, texts[start:end], headers[start:end])
            self._connection.execute(_SEND_BATCH, values)

    def consume_groups(self, batch: int, seconds: float) -> list[int]:
        """By its grouped read, which fills a batch from the earliest groups, and ``delete``.

        It ends if the server breaks off a statement that takes too long.
        """
        end, numbers = time.monotonic() + seconds, list[int]()
        read = "SELECT msg_id, message FROM pgmq.read_grouped(%s, %s, %s)"
        delete = "SELECT pgmq.delete(%s, %s::bigint[])"
        while time.monotonic() < end:
            try:
                rows = self._connection.execute(read, (_GROUPS, _VISIBILITY, batch)).fetchall()
            except QueryCanceled:
                self.cut_short = True
                break
            if rows:
                self._connection.execute(delete, (_GROUPS, [row[0] for row in rows]))
            numbers += [number_of(row[1]) for row in sorted(rows, key=lambda row: row[0])]
        return numbers

    def take(self, batch: int, count: int) -> list[int]:
        """By ``pop``."""
        numbers: list[int] = []
        while len(numbers) < count:
            # One message is returned alone, several as a list.
            got = self._pgmq.pop(QUEUE, qty=batch, conn=self._connection)
            messages = got if isinstance(got, list) else [got] if got else []
            if not messages:
                break
            numbers += [number_of(message.message) for message in messages]
        return numbers

    def latency(self, count: int, ready: Callable[[], None]) -> dict[int, float]:
        """By ``LISTEN``, then ``read`` until there are none."""
        self._pgmq.enable_notify(QUEUE, throttle_interval_ms=0, conn=self._connection)
        received: dict[int, float] = {}
        with psycopg.connect(self.url, autocommit=True) as listening:
            listening.execute(f'LISTEN "{_CHANNEL}"')
            ready()
            while len(received) < count:
                for _ in listening.notifies(timeout=1.0, stop_after=1):
                    break
                while messages := self._read(1):
                    received[number_of(messages[0].message)] = time.monotonic()
                    self._delete(messages)
        return received

    def close(self) -> None:
        """Disconnect."""
        self._pgmq.close()
        self._connection.close()
        super().close()


if __name__ == "__main__":
    serve(Pgmq)
