"""kombu's SQLAlchemy transport on PostgreSQL, MariaDB and SQLite: SimpleQueue and ConsumerMixin.

It has no concurrency of its own: a worker with several threads is a ConsumerMixin with its own
connection in each thread. It polls once a second if there are no messages. Messages are fetched one
by one, whatever the batch size.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from threading import Thread
from typing import Any

import kombu
import sqlalchemy
from kombu.mixins import ConsumerMixin

from scripts.benchmarks.contenders.peer import QUEUE, SETTLING, Handled, path_of
from scripts.benchmarks.contenders.serving import Contender, number_of, serve

_LEFT = sqlalchemy.text("SELECT count(*) FROM kombu_message WHERE visible = true")


class Kombu(Contender):
    """A claimed message stays hidden, so a killed consumer loses its messages."""

    name = "kombu"
    durability = "each commit reaches the disk"
    delivery = "at most once"
    batches = False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if url.startswith("sqlite"):
            self.durability += " (rollback journal, synchronous=FULL, SQLite's own defaults)"

    @property
    def version(self) -> str:
        """Of the installed package."""
        return metadata.version("kombu")

    def content(self, payload: str) -> Any:
        """Its serializer writes JSON itself."""
        return json.loads(payload)

    def prepare(self) -> None:
        """Create the tables."""
        self.open()
        self.close()

    def open(self) -> None:
        """Connect."""
        self._engine = sqlalchemy.create_engine(_engine_url(self.url))
        self._connection = self._connected()
        self._queue = self._connection.SimpleQueue(QUEUE)
        self._queue.qsize()

    def _connected(self) -> Any:
        return kombu.Connection(f"sqla+{_engine_url(self.url)}")

    def publish(self, payloads: list[Any], batch: int) -> None:
        """By ``put`` of a SimpleQueue."""
        del batch
        for payload in payloads:
            self._queue.put(payload)

    def consume(self, batch: int, count: int) -> list[int]:
        """By ``get`` of a SimpleQueue and ``ack``."""
        del batch
        numbers: list[int] = []
        while len(numbers) < count:
            try:
                message = self._queue.get(block=False)
            except self._queue.Empty:
                # Also raised if another consumer was faster with the next message.
                if self.remaining() == 0:
                    break
                continue
            message.ack()
            numbers.append(number_of(message.payload))
        return numbers

    def work(self, threads: int, count: int, transactional: bool) -> tuple[float, list[int]]:
        """By a ConsumerMixin in each thread."""
        del transactional
        handled = self._work(threads, lambda handled: handled.until(count, self.remaining))
        return handled.seconds, handled.numbers

    def latency(self, count: int, ready: Callable[[], None]) -> dict[int, float]:
        """By a ConsumerMixin, which polls once a second."""
        return self._work(1, lambda handled: handled.until(count), ready).moments

    def idle(self, seconds: float) -> int:
        """By a ConsumerMixin, which polls once a second."""
        statements: list[str] = []

        def count(*event: Any) -> None:
            statements.append(event[2])

        sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", count)
        self._work(1, lambda _: time.sleep(seconds))
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", count)
        return len(statements)

    def _work(
        self,
        threads: int,
        wait: Callable[[Handled], None],
        ready: Callable[[], None] | None = None,
    ) -> Handled:
        handled = Handled()
        workers = [_Worker(self._connected(), handled) for _ in range(threads)]
        running = [Thread(target=worker.run, daemon=True) for worker in workers]
        for thread in running:
            thread.start()
        if ready:
            time.sleep(SETTLING)
            ready()
        wait(handled)
        for worker in workers:
            worker.should_stop = True
        for thread in running:
            thread.join()
        return handled

    def remaining(self) -> int:
        """The visible ones; claimed ones stay hidden."""
        with self._engine.connect() as connection:
            return int(connection.execute(_LEFT).scalar_one())

    def close(self) -> None:
        """Disconnect."""
        self._queue.close()
        self._connection.close()
        self._engine.dispose()


class _Worker(ConsumerMixin):  # type: ignore[misc]
    """The library's run loop, with a stop."""

    def __init__(self, connection: Any, handled: Handled) -> None:
        self.connection = connection
        self._handled = handled

    def get_consumers(self, consumer: Any, channel: Any) -> Sequence[Any]:
        del channel
        queue = kombu.Queue(QUEUE, kombu.Exchange(QUEUE, type="direct"), routing_key=QUEUE)
        return [consumer(queue, callbacks=[self._note])]

    def _note(self, body: Any, message: Any) -> None:
        self._handled.note(body)
        message.ack()


def _engine_url(url: str) -> str:
    """The URL with the transport's driver."""
    kind, _, rest = url.partition("://")
    match kind.partition("+")[0]:
        case "sqlite":
            return f"sqlite:///{path_of(url)}"
        case "postgresql":
            return f"postgresql+psycopg://{rest}"
        case _:
            return f"mysql+pymysql://{rest}"


if __name__ == "__main__":
    serve(Kombu)
