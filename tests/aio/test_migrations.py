"""Tables of an earlier release on an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine

from queue_over_sql import SchemaOutdated
from queue_over_sql.aio import AsyncQueueService
from tests.contract.migrations import earlier_release as earlier
from tests.contract.migrations.dumps import load

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase


@pytest.mark.empty_database
@pytest.mark.engines("sqlite", "postgresql", "mariadb")
@pytest.mark.default_on("sqlite", "postgresql")
def test_a_service_says_what_is_missing_or_does_it(database: TestDatabase, url: str) -> None:
    """With ``auto_migrate=False`` it waits for somebody else, who may be another loop."""
    engine = create_engine(database.url)
    load(engine, database.engine)
    engine.dispose()

    async def main() -> None:
        service = AsyncQueueService(url, auto_migrate=False, notify=False)
        with pytest.raises(SchemaOutdated):
            await service.start()
        assert await service.migrations.pending()
        async with AsyncQueueService(url, notify=False) as other:
            texts = await (await other.queue("texts")).consume(9)
            assert earlier.TEXTS == [message.payload for message in texts]
            assert [] == await other.migrations.apply()
        await service.start()
        assert [] == await service.migrations.pending()
        await service.stop()

    asyncio.run(main())
