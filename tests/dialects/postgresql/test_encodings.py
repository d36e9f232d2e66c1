"""PostgreSQL databases with another encoding than UTF-8, and other loaders than psycopg's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.string import TextLoader
from sqlalchemy import URL, create_engine, event, make_url

from queue_over_sql import FixedDelay, PayloadInvalid, QueueService, UnsupportedByEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = [pytest.mark.engines("postgresql"), pytest.mark.threads("the server decides")]


@contextlib.contextmanager
def beside(database: TestDatabase, encoding: str) -> Iterator[URL]:
    """Another database of the server, with this encoding."""
    url = make_url(database.url)
    other, maintenance = f"{url.database}_beside", create_engine(url, isolation_level="AUTOCOMMIT")
    with maintenance.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {other} TEMPLATE template0 ENCODING {encoding} LOCALE 'C'"
        )
        try:
            yield url.set(database=other)
        finally:
            connection.exec_driver_sql(f"DROP DATABASE {other} WITH (FORCE)")
    maintenance.dispose()


def test_what_latin_1_lacks_is_escaped_in_reasons(database: TestDatabase) -> None:
    """A failure settles its message by its policy, whatever its text; a payload is refused."""
    with beside(database, "LATIN1") as url, QueueService(url) as service:
        queue = service.create_queue("mails", max_attempts=2, retry=FixedDelay(0))
        queue.publish("é")
        with pytest.raises(ValueError, match="café") as raised:
            raise ValueError("café, żółw, 😀")
        queue.consume()[0].nack(raised.value)
        [message] = queue.consume()
        assert r"ValueError: café, \u017có\u0142w, \U0001f600" == message.last_error
        assert r"\U0001f600" in str(queue.last_traceback(message.id))
        callers = create_engine(url)
        with callers.begin() as transaction:
            message.nack("😀", connection=transaction)
        callers.dispose()
        [dead] = queue.archive.messages().list()
        assert r"\U0001f600" == dead.last_error
        with pytest.raises(PayloadInvalid, match="LATIN1"):
            queue.publish("😀")


def test_a_database_without_an_encoding_is_served(database: TestDatabase) -> None:
    """It keeps UTF-8; an engine or a connection that gives its texts as bytes is refused."""
    with beside(database, "SQL_ASCII") as url, QueueService(url) as service:
        queue = service.create_queue("mails")
        queue.publish({"to": "é😀"}, key="ké", headers={"h": "é"})
        [message] = queue.consume()
        assert {"to": "é😀"} == message.payload
        assert "ké" == message.key
        assert {"h": "é"} == message.headers
        message.nack("żółw")
        assert "żółw" == queue.messages().list()[0].last_error
        in_bytes = create_engine(url)
        with pytest.raises(UnsupportedByEngine, match="client_encoding"):
            QueueService(in_bytes).create_queue("mails")
        in_bytes.dispose()
        with (
            psycopg.connect(
                url.set(drivername="postgresql").render_as_string(hide_password=False)
            ) as raw,
            pytest.raises(ValueError, match=r"text, varchar .*client_encoding=utf8"),
        ):
            queue.publish(1, connection=raw)


def test_an_application_may_read_numbers_as_text(database: TestDatabase) -> None:
    """Its engine is served; a connection that it passes is refused in words."""
    callers = create_engine(database.url)

    @event.listens_for(callers, "connect")
    def read_as_text(connection: Any, _: object) -> None:
        connection.adapters.register_loader("int8", TextLoader)

    with QueueService(callers) as service:
        queue = service.create_queue("mails")
        assert 1 == queue.publish("x").id
        [message] = queue.consume()
        assert 1 == message.id
        assert 1 == message.attempt
        with callers.begin() as own, pytest.raises(ValueError, match="int8 as other types"):
            queue.publish("y", connection=own)
        message.ack()
    callers.dispose()
