"""Names that users write, found among those that there are, with a hint for a slip of the pen."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest(name: str, known: Sequence[str]) -> str:
    """What to say of a name that is unknown: the nearest known one, and all of them."""
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    hint = f": did you mean {spelled[near[0]]}?" if near else "."
    return f"{hint} There are: {', '.join(known)}."


def chosen_names(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """The known names of the option ``columns``, in the order that the user wrote them.

    Raises:
        ValueError: there is no such column, or it is named twice.
    """
    spelled = {name.lower(): name for name in known}
    found: list[str] = []
    for name in wanted:
        column = spelled.get(name.lower())
        if column is None:
            msg = f"option columns: there is no column {name}{nearest(name, known)}"
            raise ValueError(msg)
        if column in found:
            msg = f"option columns names {column} twice"
            raise ValueError(msg)
        found.append(column)
    return found
