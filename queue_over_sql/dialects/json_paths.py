"""Fields of JSON payloads: paths, and how SQLite and MySQL write them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

JsonPath = Sequence[str | int]
"""The keys, and the positions in lists (from 0), that lead to a field."""

JsonScalar = str | int | float | bool | None
"""What a field may be compared with."""


# Nobody can have stored these; another in each process.
NUL: Final = uuid.uuid4().hex
"""What a NUL character is compared as where a text of the database cannot have one."""
LONE: Final = uuid.uuid4().hex
"""What half of a surrogate pair is compared as, which is no character at all."""


def path_text(path: JsonPath) -> str:
    """The path as ``$."address"."city"[0]``; keys must be free of quotes and backslashes.

    Control characters are written as payloads have them: tables do not take apart what they hold.
    """
    steps = [
        f"[{step}]" if isinstance(step, int) else f".{json.dumps(step, ensure_ascii=False)}"
        for step in path
    ]
    return "$" + "".join(steps)


def without_nul(text: ColumnElement[Any]) -> ColumnElement[Any]:
    """JSON with ``NUL`` for each NUL character, and no backslash that is written as two."""
    # Then the escape of a NUL is nothing but that.
    plain = func.replace(text, "\\\\", "\\u005c")
    return func.replace(plain, "\\u0000", NUL)
