"""Masking: payload fields that are hidden from all viewers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

MASK: Final = "•••"


class Mask:
    """Hides fields in everything that is shown; consumers get messages unchanged.

    Args:
        fields: names of fields at any depth, or paths such as ``user.iban``.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._names = {field.lower() for field in fields if "." not in field}
        self._paths = {tuple(field.lower().split(".")) for field in fields if "." in field}

    def __bool__(self) -> bool:
        return bool(self._names or self._paths)

    def apply(self, value: Any) -> Any:
        """A copy with ``MASK`` instead of hidden values."""
        return self._masked(value, ()) if self else value

    def hides(self, path: str) -> bool:
        """Whether a path leads to, into or around a hidden field, which a search would reveal."""
        steps = tuple(step.lower() for step in path.split(".") if not step.isdecimal())
        inside = bool(steps) and any(self._meet(steps, hidden) for hidden in self._paths)
        return inside or not self._names.isdisjoint(steps)

    @staticmethod
    def _meet(steps: tuple[str, ...], hidden: tuple[str, ...]) -> bool:
        return all(one == other for one, other in zip(steps, hidden, strict=False))

    def _masked(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [self._masked(each, path) for each in value]
        if not isinstance(value, dict):
            return value
        shown = {}
        for name, inner in value.items():
            step = (*path, str(name).lower())
            hidden = step[-1] in self._names or step in self._paths
            shown[name] = MASK if hidden else self._masked(inner, step)
        return shown
