"""A caller's connection that commits each statement: refused for what is all or none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import TYPE_CHECKING

import pytest

from queue_over_sql import Message, Publication, Queue
from tests.contract.caller_transactions import OPENERS, Caller, opened
from tests.contract.queue_state import counts

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService

pytestmark = pytest.mark.threads("the callers' engines here are synchronous ones")

Verb = Callable[[Queue, Message, Caller], object]

ALL_OR_NONE: dict[str, Verb] = {
    "publish_many": lambda queue, _, caller: queue.publish_many(["x", "y"], connection=caller),
    "replace": lambda queue, _, caller: queue.publish(
        "x", key="k", on_conflict="replace", connection=caller
    ),
    "take": lambda queue, _, caller: queue.take(connection=caller),
    "nack": lambda _, message, caller: message.nack("no", connection=caller),
    "reject": lambda _, message, caller: message.reject("no", connection=caller),
    "release": lambda _, message, caller: message.release(connection=caller),
    "hold": lambda queue, _, caller: queue.messages().hold(connection=caller),
}


@pytest.fixture
def kept(service: QueueService) -> Queue:
    """A queue that archives all, with a message to claim, and one to replace."""
    queue = service.create_queue("jobs", archive="all")
    queue.publish_many(["first", Publication("second", key="k")])
    return queue


def test_what_is_all_or_none_is_refused(kept: Queue, engine: Engine) -> None:
    """It says what to do instead; nothing was changed, and the claim still holds."""
    [claimed] = kept.consume(1)
    before = counts(kept)
    committing = engine.execution_options(isolation_level="AUTOCOMMIT")
    for verb, opener in zip(ALL_OR_NONE.values(), cycle(OPENERS.values())):
        refused = pytest.raises(ValueError, match=r"AUTOCOMMIT.*transaction")
        with opened(opener, committing) as caller, refused:
            verb(kept, claimed, caller)
    assert before == counts(kept)
    claimed.ack()


def test_one_statement_needs_no_transaction(queue: Queue, engine: Engine) -> None:
    """A message is published by one, and there at once."""
    committing = engine.execution_options(isolation_level="AUTOCOMMIT")
    for number, opener in enumerate(OPENERS.values(), start=1):
        with opened(opener, committing) as caller:
            queue.publish("one", connection=caller)
            assert number == queue.stats().ready
