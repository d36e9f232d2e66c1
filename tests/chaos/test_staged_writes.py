"""The server dies while messages are staged."""

from __future__ import annotations

import pyarrow as pa
import pytest

from queue_over_sql import QueueService, StageLost
from queue_over_sql.durable.staged_write_store import BatchName
from queue_over_sql.durable.staged_writes import StagedPublisher
from queue_over_sql.testing.plugin import TestServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]


@pytest.mark.engines("postgresql", "mariadb")
def test_a_batch_is_whole_or_not_there_after_a_crash_of_the_server(server: TestServer) -> None:
    """Where stages do not survive a crash nothing is published, and the batch comes again."""
    batch, name = BatchName("writer", 1), "payload"
    messages = pa.RecordBatch.from_arrays([pa.array(["1", "2"])], [name])
    with QueueService(server.url) as service:
        queue = service.create_queue("jobs")
        publisher = StagedPublisher(queue)
        stage = publisher.stage(batch, [name], [[messages]])
        server.kill()
        server.start()
        try:
            first = publisher.publish(batch, [stage]).created
        except StageLost:
            first = 0
            assert not publisher.is_published(batch)
            again = publisher.stage(batch, [name], [[messages]])
            assert 2 == publisher.publish(batch, [again]).created
        assert first in {0, 2}
        assert publisher.publish(batch, []).repeated
        assert [1, 2] == [message.payload for message in queue.consume(5)]
