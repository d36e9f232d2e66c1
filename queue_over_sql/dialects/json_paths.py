"""Fields of JSON payloads: paths, and how SQLite and MySQL write them."""

from __future__ import annotations

from collections.abc import Sequence

JsonPath = Sequence[str | int]
"""The keys, and the positions in lists (from 0), that lead to a field."""

JsonScalar = str | int | float | bool | None
"""What a field may be compared with."""


def path_text(path: JsonPath) -> str:
    """The path as ``$."address"."city"[0]``; keys must be free of quotes and backslashes."""
    steps = [f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in path]
    return "$" + "".join(steps)
