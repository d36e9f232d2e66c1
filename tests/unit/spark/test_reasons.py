"""The reasons of Spark's errors, from texts as Spark writes them."""

from __future__ import annotations

from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.cli.spark import explained
from queue_over_sql.spark.reasons import Raised, in_short, raised_in_python

# Spark ends a line of its own with the head of the traceback.
SOURCE = """\
[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent \
call last):
  File "queue_over_sql/spark/source.py", line 36, in schema
    queue = queue_at(next(iter(options.locations.values())), options.queue)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{raised}
 SQLSTATE: 38000"""
NO_QUEUE = "There is no queue 'import' in this database (it was never created, or it was dropped)."
# Of a batch: a traceback of the driver's Python ends with that of the executor's.
BATCH = """\
[STREAM_FAILED] Query [id = 77, runId = c1] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in \
foreachBatch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback \
(most recent call last):
  File "pyspark/sql/utils.py", line 163, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "work.py", line 6, in up
    raise ValueError("boom on " + text)
ValueError: boom on {"n":0}
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: b [id = 77, runId = c1]
Current Committed Offsets: {}

Current State: ACTIVE
Thread State: RUNNABLE

Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink, 77, [checkpointLocation=state, queryName=b]
\tat org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink.callBatchWriter"""
JAVA = """\
An error occurred while calling o55.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages
Caused by: java.lang.IllegalStateException: deep inside"""
PLAN = "[UNRESOLVED_COLUMN] A column `nosuch` cannot be resolved.\n'Project ['nosuch]\n+- Relation"


RAISED: list[tuple[str, Raised | None]] = [
    (SOURCE.format(raised="KeyError: 'a'"), Raised("KeyError", "'a'")),
    (SOURCE.format(raised="two words"), None),
    (SOURCE.format(raised="mine.Refused"), Raised("mine.Refused", "")),
    (BATCH, Raised("ValueError", 'boom on {"n":0}')),
    (JAVA, None),
    (f"{JAVA}\nTraceback (most recent call last):\n  File", None),
]
IN_SHORT = [
    (BATCH, 'ValueError: boom on {"n":0}'),
    (JAVA, "org.apache.spark.SparkException: Job aborted due to stage failure"),
    (PLAN, "[UNRESOLVED_COLUMN] A column `nosuch` cannot be resolved."),
    ("", "Exception"),
]
TOLD: list[tuple[str, tuple[str, ExitCode] | None]] = [
    (f"queue_over_sql.errors.QueueNotFound: {NO_QUEUE}", (NO_QUEUE, ExitCode.NOTHING)),
    (
        "queue_over_sql.errors.DatabaseUnavailable: The database cannot be reached",
        ("The database cannot be reached", ExitCode.UNAVAILABLE),
    ),
    (
        "queue_over_sql.errors.ConsumerFenced: another query",
        ("another query", ExitCode.FAILED),
    ),
    ("ValueError: unknown option onAk", ("unknown option onAk", ExitCode.USAGE)),
    ("queue_over_sql.errors.Sequence: no error", None),
    ("KeyError: 'a'", None),
]


def test_the_last_exception_of_python_is_found() -> None:
    """Whatever stands before its traceback and behind it, colons and all."""
    assert RAISED == [(text, raised_in_python(Exception(text))) for text, _ in RAISED]


def test_the_reason_is_one_line() -> None:
    """Without a traceback it is the first line, or the first that names an exception of Java."""
    assert IN_SHORT == [(text, in_short(Exception(text))) for text, _ in IN_SHORT]


def test_an_error_of_the_format_ends_as_everywhere() -> None:
    """With its own words and the exit code that it has where Spark is not in between."""
    for raised, expected in TOLD:
        told = explained(Exception(SOURCE.format(raised=raised)))
        assert (expected or (raised, ExitCode.FAILED)) == told


def test_a_value_error_of_the_users_own_is_no_wrong_usage() -> None:
    """It was raised while messages were processed."""
    assert ('ValueError: boom on {"n":0}', ExitCode.FAILED) == explained(Exception(BATCH))
