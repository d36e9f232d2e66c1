"""Fixtures of several modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql.testing import drain
from tests.contrib.django import site

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase


@pytest.fixture
def shop(database: TestDatabase) -> Iterator[Any]:
    """The module of the tasks, with the queues in the test's database."""
    site.set_up()
    site.use_database(database.url)
    from queue_over_sql.contrib.django import stop_services
    from queue_over_sql.contrib.django.backend import our_backends
    from tests.contrib.django import shop_tasks

    for backend in our_backends():
        backend.create_queues()
    yield shop_tasks
    stop_services()


@pytest.fixture
def work(shop: Any) -> Callable[..., int]:
    """Runs all tasks that are due, also after one has failed; returns how many."""
    del shop

    def run(backend: str = "default") -> int:
        from queue_over_sql.contrib.django.running import make_worker

        worker, handled = make_worker(backend, concurrency=1), 0
        while True:
            try:
                found = drain(worker, limit=1)
            except (Exception, SystemExit):  # noqa: BLE001 - the test looks at what became of it
                found = 1
            if not found:
                return handled
            handled += found

    return run
