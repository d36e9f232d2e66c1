"""Settings of a database that change what names, texts and statements mean: served or refused."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text

from queue_over_sql import FixedDelay, Publication, QueueService, UnsupportedByEngine
from tests.dialects.h2.driver.fresh_databases import memory_url

pytestmark = pytest.mark.engines("h2")

SERVED = (
    *[f"MODE={mode}" for mode in ("REGULAR", "LEGACY", "PostgreSQL", "MySQL", "MariaDB")],
    "MODE=DB2",
    "MODE=HSQLDB",
    "CASE_INSENSITIVE_IDENTIFIERS=TRUE",
)
REFUSED = {
    "MODE=Oracle": "MODE=REGULAR",
    "MODE=MSSQLServer": "MODE=REGULAR",
    "MODE=Derby": "MODE=REGULAR",
    "MODE=STRICT": "MODE=REGULAR",
    "DATABASE_TO_LOWER=TRUE": "DATABASE_TO_LOWER=FALSE",
    "DATABASE_TO_UPPER=FALSE": "DATABASE_TO_UPPER=TRUE",
    "IGNORECASE=TRUE": "IGNORECASE=FALSE",
}


def database(setting: str) -> str:
    """The URL of a new database with a setting."""
    return f"{memory_url()}?{setting}"


@pytest.mark.parametrize("setting", SERVED)
def test_a_queue_lives_under_these_settings(setting: str) -> None:
    """Keys are exact, failures come back, and an adopted table has its own names."""
    url = database(setting)
    with QueueService(url) as service:
        jobs = service.create_queue(
            "jobs", archive="all", dedup_window=60, retry=FixedDelay(0), max_attempts=2
        )
        jobs.publish_many([Publication({"n": key}, key=key) for key in ("a", "A", "ž", "a ")])
        messages = jobs.consume(10)
        assert ["a", "A", "ž", "a "] == [message.payload["n"] for message in messages]
        jobs.ack(messages[1:])
        messages[0].nack("first")
        [again] = jobs.consume()
        again.nack("second")
        [dead] = jobs.archive.messages(status="failed").list()
        assert "second" == dead.last_error
        assert 1 == jobs.archive.messages(status="failed").requeue()
        with create_engine(url).begin() as connection:
            connection.execute(text("CREATE TABLE bills (id INTEGER PRIMARY KEY, total INTEGER)"))
            connection.execute(text("INSERT INTO bills VALUES (1, 2)"))
        billing = service.adopt_queue("billing", "bills")
        assert 1 == billing.enqueue()
        [row] = billing.consume()
        assert {"id": 1, "total": 2} == dict(row.payload)
        row.ack()
        service.reap()
        assert ["billing", "jobs"] == [queue.name for queue in service.queues()]


@pytest.mark.parametrize("setting", REFUSED)
def test_a_database_with_other_settings_is_refused(setting: str) -> None:
    """At the first connection, with the setting that would do, and nothing is created."""
    url = database(setting)
    with pytest.raises(UnsupportedByEngine) as refused:
        QueueService(url).create_queue("jobs")
    assert setting.partition("=")[0] in str(refused.value)
    assert REFUSED[setting] in str(refused.value)
    with create_engine(url).connect() as connection:
        tables = text("SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES")
        assert not [name for name in connection.scalars(tables) if "queue" in name.lower()]
