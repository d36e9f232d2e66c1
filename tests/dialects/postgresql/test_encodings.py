"""PostgreSQL databases with another encoding than UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, create_engine, make_url

from queue_over_sql import FixedDelay, PayloadInvalid, QueueService

if TYPE_CHECKING:
    from queue_over_sql.testing.plugin import TestDatabase

pytestmark = [pytest.mark.engines("postgresql"), pytest.mark.threads("the server decides")]


def test_what_latin_1_lacks_is_escaped_in_reasons(engine: Engine, database: TestDatabase) -> None:
    """A failure settles its message by its policy, whatever its text; a payload is refused."""
    other = f"{engine.url.database}_latin"
    url = make_url(database.url).set(database=other)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {other} TEMPLATE template0 ENCODING LATIN1 LOCALE 'C'"
        )
        try:
            callers = create_engine(url)
            with QueueService(url) as service:
                queue = service.create_queue("mails", max_attempts=2, retry=FixedDelay(0))
                queue.publish("é")
                with pytest.raises(ValueError, match="café") as raised:
                    raise ValueError("café, żółw, 😀")
                queue.consume()[0].nack(raised.value)
                [message] = queue.consume()
                assert r"ValueError: café, \u017có\u0142w, \U0001f600" == message.last_error
                assert r"\U0001f600" in str(queue.last_traceback(message.id))
                with callers.begin() as transaction:
                    message.nack("😀", connection=transaction)
                [dead] = queue.archive.messages().list()
                assert r"\U0001f600" == dead.last_error
                with pytest.raises(PayloadInvalid, match="latin-1"):
                    queue.publish("😀")
            callers.dispose()
        finally:
            connection.exec_driver_sql(f"DROP DATABASE {other} WITH (FORCE)")
