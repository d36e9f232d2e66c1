"""Databases of Spark's readers and writers: they are never created if they do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from queue_over_sql import DatabaseUnavailable, QueueService
from queue_over_sql.spark import QueueDataSource, run_workers
from queue_over_sql.spark.databases import service_at
from queue_over_sql.spark.options import Location

if TYPE_CHECKING:
    from collections.abc import Callable

    Use = Callable[[dict[str, str]], object]

PAYLOAD = StructType([StructField("payload", StringType())])
# Columns are asked for first, and at once; a stream that runs waits for a file as for a server.
STREAM = {"consumerid": "c", "reconnecttimeout": "1ms"}
USES: dict[str, Use] = {
    "columns": lambda options: QueueDataSource(options).schema(),
    "reader": lambda options: QueueDataSource(options).reader(PAYLOAD).partitions(),
    "stream": lambda options: (
        QueueDataSource({**options, **STREAM}).streamReader(PAYLOAD).initialOffset()
    ),
    "writer": lambda options: QueueDataSource(options).writer(PAYLOAD, overwrite=False),
    "stream writer": lambda options: QueueDataSource(options).streamWriter(
        PAYLOAD, overwrite=False
    ),
    "workers": lambda options: run_workers(
        cast("Any", None), options["queue"], print, url=options["url"]
    ),
}
FORMS = ("{}", "file:{}?uri=true", "file://{}?uri=true&mode=rwc", "file://localhost{}?uri=true")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a database may be; its name is written with an escape in a URI."""
    return tmp_path / "a queue.db"


def test_a_file_that_is_not_there_is_not_made(file: Path) -> None:
    """A mistyped path would look like a database without queues, and stay as a file."""
    for form in FORMS:
        location = Location(url="sqlite:///" + form.format(file))
        words = r"sqlite:///.*no file .*a queue\.db"
        with pytest.raises(DatabaseUnavailable, match=words) as caught:
            service_at(location)
        assert "queue-over-sql create" in str(caught.value), form
        assert not file.exists(), form


def test_a_file_that_is_there_is_used(file: Path) -> None:
    """However the URL names it."""
    with QueueService(f"sqlite:///{file}") as service:
        service.create_queue("jobs")
    for form in FORMS:
        made = service_at(Location(url="sqlite:///" + form.format(file)))
        assert ["jobs"] == [queue.name for queue in made.queues()], form
        made.stop()


def test_what_is_no_file_is_not_looked_for() -> None:
    """A database in memory, or of a server."""
    memory = ("sqlite://", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true")
    for url in (*memory, "postgresql://host/db"):
        service_at(Location(url=url)).stop()


def test_no_use_of_the_format_makes_a_file(file: Path) -> None:
    """Reading, writing and working alike."""
    for name, use in USES.items():
        with pytest.raises(DatabaseUnavailable, match="no file"):
            use({"url": f"sqlite:///{file}", "queue": "jobs"})
        assert not file.exists(), name


def test_a_file_that_has_gone_is_not_made_anew(file: Path) -> None:
    """The service of this process may be older than that."""
    location = Location(url=f"sqlite:///{file}")
    QueueService(f"sqlite:///{file}").create_queue("jobs")
    service_at(location).stop()
    file.unlink()
    with pytest.raises(DatabaseUnavailable, match="no file"):
        service_at(location)
