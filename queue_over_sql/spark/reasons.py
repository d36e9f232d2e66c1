"""The reasons of Spark's errors, without stacks and plans."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

_TRACEBACK: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?")
# Spark's additions to the last line of Python's text.
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")


@dataclasses.dataclass(frozen=True)
class Raised:
    """A Python exception, from the last line of its traceback.

    ``kind`` is the class, with its module unless it is a builtin: ``ValueError``.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        """The line itself."""
        return f"{self.kind}: {self.text}" if self.text else self.kind


def raised_in_python(error: BaseException) -> Raised | None:
    """The exception of the last Python traceback in Spark's error; None if there is none.

    Spark puts the head of a traceback at the end of one of its own lines. After its end there are
    JVM stacks, plans and thread states.
    """
    lines = str(error).splitlines()
    heads = [number for number, line in enumerate(lines) if line.endswith(_TRACEBACK)]
    if not heads:
        return None
    for line in lines[heads[-1] + 1 :]:
        # Frames and their source lines are indented; the first other line ends them.
        if line[:1].isspace() or not line:
            continue
        found = _RAISED.fullmatch(line)
        if found is None:
            return None
        return Raised(found["kind"], _SQLSTATE.sub("", found["text"] or "").strip())
    return None


def in_short(error: BaseException) -> str:
    """Spark's error in one line."""
    raised = raised_in_python(error)
    if raised is not None:
        return str(raised)
    # Py4J has the reason in the second line, after a colon.
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    texts = [line for line in lines if not line.startswith(("at ", "File ", "Caused by", "Driver"))]
    java = [line for line in texts if "Exception: " in line]
    return next(iter([*java, *texts]), type(error).__name__)
