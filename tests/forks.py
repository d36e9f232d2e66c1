"""Ask a forked child of the test."""

from __future__ import annotations

import os
import signal
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 30


def in_a_child(question: Callable[[], object]) -> bool:
    """Whether the answer of a forked child is true; a child that hangs has none."""
    with warnings.catch_warnings():
        # From Python 3.12 on it warns if there are other threads. The child needs nothing of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_SECONDS)
        status = 1
        try:
            status = int(not question())
        finally:
            os._exit(status)
    return not os.waitpid(child, 0)[1]
