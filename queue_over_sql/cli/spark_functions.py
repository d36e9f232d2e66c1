"""The user's functions that commands of `spark` run; some modules need a session to be imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from queue_over_sql.cli.imports import import_object

__all__ = ["check_function", "load_function"]


def check_function(target: str, default: str) -> bool:
    """Refuse what is no function, unless its module can only be imported in a session.

    ``@udf("string")``, ``col("id")`` and ``SparkSession.active()`` ask Spark as soon as they are
    written. What Spark has to say against them in a session, it says there.

    Args:
        target: the import path.
        default: the function's name where the path has none.

    Returns:
        Whether it could be imported without a session.

    Raises:
        typer.BadParameter: there is no such function. An error inside the module itself is raised
            as it is.
    """
    try:
        load_function(target, default)
    except Exception as error:
        if not _raised_by_spark(error):
            raise
        return False
    return True


def load_function(target: str, default: str) -> Callable[..., Any]:
    """Import a function.

    Args:
        target: the import path.
        default: the function's name where the path has none.

    Raises:
        typer.BadParameter: there is no such function. An error inside the module itself is raised
            as it is.
    """
    try:
        found = import_object(target, default)
    except ValueError as error:
        if _raised_by_spark(error):
            raise
        raise typer.BadParameter(str(error)) from error
    if not callable(found):
        raise typer.BadParameter(f"{target} is a {type(found).__name__}, not a function")
    return found


def _raised_by_spark(error: BaseException) -> bool:
    """Whether it was raised in PySpark's own code, whose errors are of many types."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == "pyspark"
