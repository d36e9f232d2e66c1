"""The checks of `process`, with a stand-in for Spark that only records calls."""

from __future__ import annotations

from typing import Any, cast

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


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"queue": "import"}, QueueNotFound, "no queue 'import'"),
    ({"to": "nothere"}, QueueNotFound, "no queue 'nothere'"),
    ({"url": "sqlite:////nowhere/x.db"}, DatabaseUnavailable, "cannot be reached"),
    ({"options": {"onAk": "delete"}}, ValueError, "did you mean onAck"),
    ({"options": {"onAck": "burn"}}, ValueError, "option onAck"),
    ({"consumer_id": "with a space"}, ValueError, "option consumerId"),
]


@pytest.mark.engines("sqlite")
def test_what_is_wrong_is_told_before_spark_is_asked(
    database: TestDatabase, service: QueueService
) -> None:
    """As the error that it is: Spark would put it into a page of its own."""
    service.create_queue("jobs")
    service.create_queue("done")
    for arguments, error, words in WRONG:
        given = {"queue": "jobs", "to": "done", "url": database.url, **arguments}
        spark: Any = Spark()
        with pytest.raises(error, match=words):
            process(spark, given.pop("queue"), lambda rows: rows, checkpoint="state", **given)
        assert [] == spark.asked, arguments


@pytest.mark.engines("sqlite")
def test_functions_return_a_data_frame(database: TestDatabase, service: QueueService) -> None:
    """What returns something else, such as nothing or a writer, is named."""
    service.create_queue("jobs")
    service.create_queue("done")
    frame, spark = object.__new__(DataFrame), cast("Any", Spark())
    returned: tuple[tuple[str, Any, Any], ...] = (("transform", 7, frame), ("message", frame, 7))
    for wrong, transformed, written in returned:
        with pytest.raises(ValueError, match=f"{wrong}.*must return a DataFrame, not int"):
            process(
                spark,
                "jobs",
                lambda _: transformed,  # noqa: B023 - it is called before the next one
                message=lambda _: written,  # noqa: B023
                to="done",
                checkpoint="state",
                url=database.url,
            )
