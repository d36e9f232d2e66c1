"""The account itself: it must detect what the other tests hope never to find.

What it finds by the checker of histories is in `tests/testing/test_history.py`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.chaos.account import Account
from tests.chaos.journal import Event, Journal


def test_a_round_used_twice_is_found(tmp_path: Path) -> None:
    """Two batches with one stamp are what a counter that is not atomic leaves behind."""
    first = Event("delivered", 1.0, "a", name="t", id=1, consumer="A", round=1, batch=1)
    Journal(tmp_path, "a").write([first, dataclasses.replace(first, id=2, batch=2)])
    assert [("A", 1)] == Account(tmp_path).rounds_shared_by_batches()
