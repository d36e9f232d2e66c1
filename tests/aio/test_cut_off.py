"""A connection that ends in the middle of an answer: an error in our words, whatever the driver."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

from queue_over_sql import DatabaseUnavailable, QueueService
from queue_over_sql.aio import AsyncQueueService
from tests.chaos.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = [
    pytest.mark.engines("postgresql", "mysql", "mariadb"),
    pytest.mark.default_on("mariadb"),
    pytest.mark.timeout(120),
]
DRIVERS = {
    "postgresql": ("psycopg", "asyncpg"),
    "mysql": ("aiomysql", "asyncmy"),
    "mariadb": ("aiomysql", "asyncmy"),
}
# Bytes of the server: the greeting, the login, the first queries, and the queue's statements.
WHERE = (0, 3, 40, 200, 700, 3000)


@pytest.fixture
def proxy(database: TestDatabase) -> Iterator[Proxy]:
    """Before the test's server, whose database has a queue."""
    with contextlib.closing(Proxy(database.url)) as proxy:
        service = QueueService(database.url)
        service.create_queue("jobs")
        service.stop()
        yield proxy


async def use(url: str) -> None:
    """Connect, and use the queue once."""
    service = AsyncQueueService(url)
    try:
        queue = await service.queue("jobs")
        await queue.publish({"number": 1})
        [message] = await queue.consume()
        await message.ack()
    finally:
        with contextlib.suppress(DatabaseUnavailable):
            await service.stop(timeout=1.0)


def test_an_end_of_file_is_an_unavailable_database(database: TestDatabase, proxy: Proxy) -> None:
    """Wherever the server's answers end, what leaves the library is never the driver's own error.

    With each asynchronous driver of the engine.
    """
    for driver in DRIVERS[database.engine]:
        through = make_url(proxy.url).set(drivername=f"{database.engine}+{driver}")
        url = through.render_as_string(hide_password=False)
        for answered in WHERE:
            proxy.cut_after(answered)
            with pytest.raises(DatabaseUnavailable):
                asyncio.run(use(url))
        proxy.cut_after(float("inf"))
        asyncio.run(use(url))
