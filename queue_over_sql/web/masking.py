"""Masking: payload fields that are hidden from all viewers."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queue_over_sql.values.json_lines import to_json

MASK: Final = "•••"
_ROUNDS: Final = 4
_HALF_BITS: Final = 32

# What follows a name in a text: a quoted value, the rest of the line if that has an opening quote
# or bracket, or all up to the next comma, semicolon or bracket.
_VALUE: Final = (
    r"""["'\\]*\s*[:=]\s*)(?:"(?:[^"\\]|\\.){0,2000}"|'(?:[^'\\]|\\.){0,2000}'"""
    r"""|["'\\\[{(][^\n]*|[^\n,;)}\]]+)"""
)
_LIKE_JSON: Final = re.compile(r"""\s*(?:\{|\[\s*["{\[])""")


class Mask:
    """Hides fields in everything that is shown; consumers get messages unchanged.

    Args:
        fields: names of fields at any depth, or paths such as ``user.iban``.
        key: seals fingerprints of errors.
    """

    def __init__(self, fields: Sequence[str], key: bytes = b"") -> None:
        self._key = key
        self._names = {field.lower() for field in fields if "." not in field}
        self._paths = {tuple(field.lower().split(".")) for field in fields if "." in field}
        last = {path[-1] for path in self._paths}
        # Checks of types repeat what they refuse as ``input_value``.
        named = "|".join(sorted(map(re.escape, {*self._names, *last, "input_value"})))
        self._in_texts = re.compile(rf"((?<!\w)(?:{named})(?!\w){_VALUE}", re.IGNORECASE)

    def __bool__(self) -> bool:
        return bool(self._names or self._paths)

    def apply(self, value: Any) -> Any:
        """A copy with ``MASK`` instead of hidden values, also in texts that contain JSON."""
        return self._masked(value, ()) if self else value

    def text(self, text: str) -> str:
        """A text without hidden values: JSON, or sentences such as errors.

        In sentences a value is known by the name before it, as in ``iban: DE02``. What begins like
        JSON but cannot be read is ``MASK`` alone.
        """
        if not self:
            return text
        found = self._in_json(text, ())
        if found is None and _LIKE_JSON.match(text):
            return MASK
        return self._in_texts.sub(rf"\1{MASK}", text) if found is None else found

    def data(self, content: bytes) -> bytes:
        """Bytes without hidden values; ``MASK`` alone if they are no text."""
        if not self:
            return content
        try:
            return self.text(content.decode()).encode()
        except UnicodeDecodeError:
            return MASK.encode()

    def hides(self, path: str, value: Any = None) -> bool:
        """Whether a search for this value would reveal a hidden field, by its path or its value."""
        steps = tuple(step.lower() for step in path.split(".") if not step.isdecimal())
        inside = bool(steps) and any(self._meet(steps, hidden) for hidden in self._paths)
        if inside or not self._names.isdisjoint(steps):
            return True
        return bool(self) and self._masked(value, steps) != value

    def sealed(self, fingerprint: str) -> str:
        """A fingerprint as this server shows it.

        A fingerprint is made of the whole error. If fields are masked, who sees it could make those
        of guessed errors and compare. So it is encrypted, to as many digits.
        """
        return self._exchanged(fingerprint, range(_ROUNDS)) if self else fingerprint

    def opened(self, sealed: str) -> str:
        """The fingerprint that was sealed."""
        return self._exchanged(sealed, range(_ROUNDS)[::-1]) if self else sealed

    def _exchanged(self, digits: str, rounds: Sequence[int]) -> str:
        # A Feistel network: the rounds in reverse undo it.
        left, right = divmod(int(digits, 16), 1 << _HALF_BITS)
        for each in rounds:
            text = f"fingerprint {each} {right}".encode()
            mixed = hmac.new(self._key, text, hashlib.sha256).digest()[: _HALF_BITS // 8]
            left, right = right, left ^ int.from_bytes(mixed)
        return f"{(right << _HALF_BITS) | left:016x}"

    @staticmethod
    def _meet(steps: tuple[str, ...], hidden: tuple[str, ...]) -> bool:
        return all(one == other for one, other in zip(steps, hidden, strict=False))

    def _masked(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [self._masked(each, path) for each in value]
        if isinstance(value, str):
            found = self._in_json(value, path)
            return self._in_texts.sub(rf"\1{MASK}", value) if found is None else found
        if not isinstance(value, Mapping):
            return value
        shown = {}
        for name, inner in value.items():
            # The conditions of subscriptions have paths as names.
            step = (*path, *str(name).lower().split("."))
            hidden = step[-1] in self._names or step in self._paths
            shown[name] = MASK if hidden else self._masked(inner, step)
        return shown

    def _in_json(self, text: str, path: tuple[str, ...]) -> str | None:
        # The masked text if it contains JSON with names.
        if not _LIKE_JSON.match(text):
            return None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        shown = self._masked(self._masked(value, path), ()) if path else self._masked(value, ())
        return text if shown == value else to_json(shown)
