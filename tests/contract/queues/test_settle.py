"""Settling: ack, nack, release, reject, extend, exchange and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queue_over_sql import ClaimLost
from queue_over_sql.testing.contract.settling import BATCH_VERBS, MESSAGE_VERBS
from tests.contract.queue_state import live_rows

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import Queue

pytestmark = pytest.mark.driver_decides


same_statements = pytest.mark.threads("the batch verbs send these statements on both faces")


@pytest.mark.engines("sqlite")
@pytest.mark.threads("no statement is sent")
def test_a_batch_of_nothing_is_nothing(queue: Queue) -> None:
    """An empty batch is no error."""
    for verb in BATCH_VERBS.values():
        verb(queue, [])


@pytest.mark.engines("sqlite")
@pytest.mark.threads("no statement is sent")
def test_a_listed_message_has_no_claim(queue: Queue, engine: Engine) -> None:
    """Looking at a message gives no right to change it, claimed or not."""
    queue.publish_many(["ready", "claimed"])
    queue.consume()
    before = live_rows(engine, queue)
    for message in queue.messages().list():
        for verb in MESSAGE_VERBS.values():
            with pytest.raises(ClaimLost):
                verb(message)
    assert before == live_rows(engine, queue)
