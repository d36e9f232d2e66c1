"""Run a worker beside a test."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql.worker.worker import Worker


class HandlerFailed(Exception):
    """What a handler of a test raises."""


@contextmanager
def running(worker: Worker, *, until_empty: bool = False) -> Iterator[threading.Thread]:
    """Run the worker in a thread; at the end stop it, or let it end by itself, and join it."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run(until_empty=until_empty)
        except BaseException as error:  # noqa: BLE001 - handed to the test below
            failures.append(error)

    thread = threading.Thread(target=run, name="worker of a test")
    thread.start()
    try:
        yield thread
    finally:
        if not until_empty:
            worker.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert [] == failures
