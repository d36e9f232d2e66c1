"""A server with a small ``max_allowed_packet``: batches fit, and what cannot is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, text
from sqlalchemy.dialects.mysql import LONGTEXT

from queue_over_sql import PayloadTooLarge, Publication, QueueService

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql.testing.plugin import TestServer

# A private MySQL takes many seconds to prepare.
pytestmark = [pytest.mark.engines("mysql", "mariadb"), pytest.mark.default_on("mariadb")]

PACKET = 1_048_576
# Characters with a backslash or four bytes in the statement, so that it is the longest for them.
TEXTS = ('"\\', "😀", "x")


@pytest.fixture
def small(server: TestServer) -> Iterator[QueueService]:
    """A service on a server that accepts statements of 1 MiB."""
    engine = create_engine(server.url)
    with engine.begin() as connection:
        connection.execute(text(f"SET GLOBAL max_allowed_packet = {PACKET}"))
    engine.dispose()
    service = QueueService(server.url)
    yield service
    service.stop()


def test_what_fits_is_published_and_the_rest_refused(
    small: QueueService, server: TestServer
) -> None:
    """Batches are cut to fit; what is too large alone is not sent, so no connection breaks."""
    _batches_fit(small)
    _a_message_is_refused(small)
    _a_row_is_refused(small, server)


def _batches_fit(small: QueueService) -> None:
    queue = small.create_queue("jobs", payload="text")
    payloads = [(each * 30_000)[:30_000] + str(n) for n in range(20) for each in TEXTS]
    queue.publish_many(payloads)
    queue.load(payloads)
    queue.load([Publication(each, key=f"{'k' * 190}{n}") for n, each in enumerate(payloads)])
    tiny = [Publication(str(n), key=f"{n:200}") for n in range(3_000)]
    queue.publish_many(tiny)
    expected = [*payloads * 3, *(str(n) for n in range(3_000))]
    found = []
    while messages := queue.consume(500):
        found += [message.payload for message in messages]
        queue.ack(messages)
    assert expected == found


def _a_message_is_refused(small: QueueService) -> None:
    queue = small.create_queue("large", payload="text", max_payload_bytes=4 * PACKET)
    long = '"' * (PACKET // 2)
    for publish in (
        lambda: queue.publish(long),
        lambda: queue.publish(long, key="k", on_conflict="replace"),
        lambda: queue.publish_many(["short", long]),
        lambda: queue.load(["short", long]),
    ):
        with pytest.raises(PayloadTooLarge, match="max_allowed_packet"):
            publish()
    # Without a backslash it fits.
    queue.publish("x" * (PACKET - 4096))
    assert 1 == queue.stats().ready


def _a_row_is_refused(small: QueueService, server: TestServer) -> None:
    notes = Table(
        "notes", MetaData(), Column("id", Integer, primary_key=True), Column("body", LONGTEXT)
    )
    engine = create_engine(server.url)
    notes.create(engine)
    engine.dispose()
    queue = small.adopt_queue("notes", notes)
    with pytest.raises(PayloadTooLarge, match="max_allowed_packet"):
        queue.publish({"body": '"' * (PACKET // 2)})
    queue.publish({"body": "short"})
    assert 1 == queue.stats().ready
