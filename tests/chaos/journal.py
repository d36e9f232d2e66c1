"""The journal of a process of a test: that of `queue_over_sql.testing.history`, with tokens.

The tests' payloads are `{"token": …}`: a name that a message has before the database gives an id.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_over_sql.testing.history import journal
else:
    # By its path, because a process may run an earlier release, which has no such module.
    _NAME = "queue_over_sql.testing.history.journal"
    _PATH = Path(__file__).resolve().parents[2] / f"{_NAME.replace('.', '/')}.py"
    try:
        from queue_over_sql.testing.history import journal
    except ImportError:
        _spec = importlib.util.spec_from_file_location(_NAME, _PATH)
        journal = importlib.util.module_from_spec(_spec)
        sys.modules[_NAME] = journal
        _spec.loader.exec_module(journal)

Event, Stamp = journal.Event, journal.Stamp


def token_of(message: Any) -> str:
    """The token of a message."""
    return str(message.payload["token"])


class Journal(journal.Journal):
    """The journal of one process, which it is named after unless told."""

    def __init__(self, folder: str | Path, writer: str = "") -> None:
        super().__init__(folder, writer or f"process-{os.getpid()}", name_of=token_of)
