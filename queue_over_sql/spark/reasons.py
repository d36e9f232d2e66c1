"""What Spark's errors say: their reason, of the pages of stacks and plans that come with it."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

_TRACEBACK: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?")
# What Spark adds to the last line of Python's words.
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")


@dataclasses.dataclass(frozen=True)
class Raised:
    """An exception of Python as the last line of its traceback tells it.

    Its ``kind`` is the class, with its module unless it is a builtin: ``ValueError``.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        """The line itself."""
        return f"{self.kind}: {self.text}" if self.text else self.kind


def raised_in_python(error: BaseException) -> Raised | None:
    """The exception that ends the last traceback of Python inside Spark's error, if there is one.

    Spark puts the head of a traceback at the end of a line of its own, and stacks of the JVM, plans
    and the state of threads behind its end.
    """
    lines = str(error).splitlines()
    heads = [number for number, line in enumerate(lines) if line.endswith(_TRACEBACK)]
    if not heads:
        return None
    for line in lines[heads[-1] + 1 :]:
        # Frames and their source lines are indented; the first line that is not ends them.
        if line[:1].isspace() or not line:
            continue
        found = _RAISED.fullmatch(line)
        if found is None:
            return None
        return Raised(found["kind"], _SQLSTATE.sub("", found["text"] or "").strip())
    return None


def in_short(error: BaseException) -> str:
    """What Spark's error says, in one line."""
    raised = raised_in_python(error)
    if raised is not None:
        return str(raised)
    # Py4J begins its second line, which has the reason, with a colon.
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("at ", "File ", "Caused by", "Driver"))]
    java = [line for line in told if "Exception: " in line]
    return next(iter([*java, *told]), type(error).__name__)
