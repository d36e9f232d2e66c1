"""What `process` refuses by itself; what stands in for Spark only records its questions."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame

from queue_over_sql import DatabaseUnavailable, QueueNotFound, QueueService
from queue_over_sql.spark.pipelines.process import process
from queue_over_sql.testing.plugin import TestDatabase


class Spark:
    """Answers each question with itself, and keeps its name."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Spark:
        self.asked.append(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Spark:
        return self


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"queue": "import"}, QueueNotFound, "no queue 'import'"),
        ({"to": "nothere"}, QueueNotFound, "no queue 'nothere'"),
        ({"url": "sqlite:////nowhere/x.db"}, DatabaseUnavailable, "cannot be reached"),
        ({"options": {"onAk": "delete"}}, ValueError, "did you mean onAck"),
        ({"options": {"onAck": "burn"}}, ValueError, "option onAck"),
        ({"consumer_id": "with a space"}, ValueError, "option consumerId"),
    ],
)
def test_what_is_wrong_is_told_before_spark_is_asked(
    arguments: dict[str, Any],
    error: type[Exception],
    words: str,
    database: TestDatabase,
    service: QueueService,
) -> None:
    """As the error that it is: Spark would put it into a page of its own."""
    service.create_queue("jobs")
    service.create_queue("done")
    given = {"queue": "jobs", "to": "done", "url": database.url, **arguments}
    spark: Any = Spark()
    with pytest.raises(error, match=words):
        process(spark, given.pop("queue"), lambda rows: rows, checkpoint="state", **given)
    assert [] == spark.asked


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("wrong", ["transform", "message"])
def test_functions_return_a_data_frame(
    wrong: str, database: TestDatabase, service: QueueService
) -> None:
    """What returns something else, such as nothing or a writer, is named."""
    service.create_queue("jobs")
    service.create_queue("done")
    frame = object.__new__(DataFrame)
    made: dict[str, Any] = {"transform": frame, "message": frame, wrong: 7}
    spark: Any = Spark()
    with pytest.raises(ValueError, match=f"{wrong}.*must return a DataFrame, not int"):
        process(
            spark,
            "jobs",
            lambda _: made["transform"],
            message=lambda _: made["message"],
            to="done",
            checkpoint="state",
            url=database.url,
        )
