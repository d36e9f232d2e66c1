"""Tables of wrong values, tried in one test."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def not_refused(
    act: Callable[[Any], object], wrong: Iterable[tuple[Any, str]], error: type[Exception]
) -> dict[str, str]:
    """The values that are taken, or refused without the words that are expected, and what is said.

    Args:
        act: gets each value in turn.
        wrong: values, each with a pattern of what the error says.
        error: its type; another one is raised.
    """
    found = {}
    for value, words in wrong:
        said = "nothing"
        try:
            act(value)
        except error as refusal:
            said = str(refusal)
        if said == "nothing" or not re.search(words, said):
            found[ascii(value)] = said
    return found
