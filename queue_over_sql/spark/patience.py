"""Outlasting a database that restarts: Spark gives up a query at the first error of its source."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from queue_over_sql.errors import DatabaseUnavailable

_log = logging.getLogger(__name__)
T = TypeVar("T")
_LONGEST_PAUSE: Final = 2.0


def outlast(act: Callable[[], T], seconds: float) -> T:
    """Run an act that is safe to repeat, again and again while the database is away.

    Raises:
        DatabaseUnavailable: it is away for longer than so many seconds.
    """
    deadline = time.monotonic() + seconds
    pause = 0.1
    while True:
        try:
            return act()
        except DatabaseUnavailable as error:
            if time.monotonic() + pause > deadline:
                raise
            _log.warning("Trying again in %.1f s: %s", pause, error)
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - to spread the queries
        pause = min(_LONGEST_PAUSE, pause * 2)
