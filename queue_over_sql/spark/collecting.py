"""Cheap collections in the Python workers of Spark.

Spark collects garbage in a worker after each task, and to plan one read it goes through three
workers. Each such collection walks over all that was ever imported: SQLAlchemy, Arrow, pandas and
the drivers are more than 100,000 objects, and took longer than what a small read is about.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

_DAEMON: Final = "pyspark.daemon"
_TURNS: Final = (2, 8, 32)
_visits: Final[dict[int, int]] = {}


def spare_imports() -> None:
    """Leave what is imported out of further collections, in a worker of Spark.

    A few times only, the last when the tasks before have surely imported all that they need: what
    is alive then is never looked at again. In any other program that is not for us to decide.
    """
    process = os.getpid()
    visits = _visits[process] = _visits.get(process, 0) + 1
    if visits in _TURNS and is_worker():
        gc.collect()
        gc.freeze()


def is_worker() -> bool:
    """Whether this process is one that Spark's daemon of Python workers has forked."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
