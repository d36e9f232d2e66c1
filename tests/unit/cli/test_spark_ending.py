"""The end of Spark's commands: which errors belong to a requested end."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
import typer
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException
from typer.core import TyperCommand

import queue_over_sql.spark
from queue_over_sql.cli.session import CommandSession
from queue_over_sql.cli.signals import Stop
from queue_over_sql.cli.spark import ended_by, spark_session

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

LOST: tuple[Exception, ...] = (
    ConnectionRefusedError(111, "Connection refused"),
    Py4JNetworkError("Answer from Java side is empty"),
    StreamingQueryException("the SparkContext was shut down"),
)


def test_a_lost_jvm_is_no_error_after_a_signal() -> None:
    """The signal has ended it, too; before one it is an error."""
    for error in LOST:
        stop = Stop()
        with pytest.raises(type(error)), ended_by(stop):
            raise error
        stop.request()
        with ended_by(stop):
            raise error


def test_other_errors_stay_errors() -> None:
    """What is wrong in our own code is told, whoever asked to stop."""
    stop = Stop()
    stop.request()
    with pytest.raises(KeyError), ended_by(stop):
        raise KeyError("mine")


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("failed", [False, True])
def test_a_session_that_has_gone_needs_no_stop(
    error: Exception, failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it cannot be stopped does not hide what happened before."""

    class Gone:
        def stop(self) -> None:
            raise error

    monkeypatch.setattr(queue_over_sql.spark, "session", Gone)
    ending: AbstractContextManager[object] = nullcontext()
    if failed:
        ending = pytest.raises(typer.Exit)
    with ending, spark_session(CommandSession(TyperCommand("process")), None, None):
        if failed:
            raise StreamingQueryException("mine")
