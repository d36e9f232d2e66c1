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
_SECOND: Final = 2
_visits: Final[dict[int, int]] = {}


def spare_imports() -> None:
    """Leave what is imported out of further collections, once, in a worker of Spark.

    On the second call of a process: by then the first task has imported all that tasks need, and
    what it made besides is gone. In any other program garbage is not for us to decide on.
    """
    process = os.getpid()
    visits = _visits[process] = _visits.get(process, 0) + 1
    if visits == _SECOND and is_worker():
        gc.collect()
        gc.freeze()


def is_worker() -> bool:
    """Whether this process is one that Spark's daemon of Python workers has forked."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
