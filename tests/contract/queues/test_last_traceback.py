"""The traceback of a failure is stored with the message, also in the archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.worker.running_worker import HandlerFailed, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from queue_over_sql import Queue, QueueService


def raised(text: str) -> HandlerFailed:
    """An exception that came from somewhere."""
    with pytest.raises(HandlerFailed) as caught:
        raise HandlerFailed(text)
    return caught.value


def test_it_is_kept_until_the_next_failure(queue: Queue) -> None:
    """Live and archived; of an exception alone."""
    message_id = queue.publish("x", max_attempts=3).id
    assert queue.last_traceback(message_id) is None
    (message,) = queue.consume()
    message.nack(raised("first"), delay=0)
    kept = queue.last_traceback(message_id)
    assert kept is not None
    assert kept.startswith("Traceback (most recent call last)")
    assert "HandlerFailed: first" in kept
    (message,) = queue.consume()
    message.nack("told without one", delay=0)
    assert kept == queue.last_traceback(message_id)
    (message,) = queue.consume()
    message.nack(raised("second\0" + "long" * 10_000))
    archived = queue.last_traceback(message_id)
    assert archived is not None
    assert archived.rstrip().endswith("long")
    assert len(archived) <= 20_000
    assert 1 == queue.archive.messages().count()
    assert queue.last_traceback(message_id + 1) is None


@pytest.mark.parametrize("options", [{}, {"transactional": True, "commit_every": 5}])
def test_a_handlers_is_kept(
    service: QueueService,
    queue: Queue,
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of each message of its own, also where messages share a transaction; from the user's code on.

    So does the log.
    """
    ids = [each.id for each in queue.publish_many(range(3))]
    worker = service.worker(concurrency=1, poll_interval=(0.01, 0.05))

    @worker.handle("jobs", **options)
    def handle(message: Any, *_: Any) -> None:
        raise HandlerFailed(f"of {message.payload}")

    with running(worker):
        wait_until(lambda: all(queue.last_traceback(each) for each in ids))
    for number, message_id in enumerate(ids):
        text = queue.last_traceback(message_id)
        assert text is not None
        assert f"HandlerFailed: of {number}" in text
        assert "/tests/" in text.splitlines()[1]
    logged = [record.exc_text or "" for record in caplog.records if record.exc_info]
    assert len(ids) == len(logged)
    assert all("/tests/" in text.splitlines()[1] for text in logged)
