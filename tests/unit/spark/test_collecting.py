"""What Spark's Python workers exclude from garbage collection."""

from __future__ import annotations

import gc
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

from queue_over_sql.spark import databases as collecting

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


def frozen_after(monkeypatch: pytest.MonkeyPatch, calls: int) -> Iterator[bool]:
    """Whether something is left out of collections, after each call."""
    monkeypatch.setattr(collecting, "_visits", {})
    for _ in range(calls):
        collecting.spare_imports()
        yield gc.get_freeze_count() > 0


def test_a_worker_leaves_its_imports_out_from_the_second_use_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark's daemon is what such a process was started as."""
    daemon = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"))
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    gc.unfreeze()
    try:
        assert [False, True, True] == list(frozen_after(monkeypatch, 3))
        assert collecting.is_worker()
    finally:
        gc.unfreeze()


def test_other_programs_keep_their_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often they use a database."""
    gc.unfreeze()
    assert {False} == set(frozen_after(monkeypatch, 40))
    assert not collecting.is_worker()


def test_a_forked_worker_counts_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's children begin anew."""
    monkeypatch.setattr(collecting, "_visits", {})
    collecting.spare_imports()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    collecting.spare_imports()
    assert {1} == set(collecting._visits.values())
