"""Break a statement into lines: only white space changes, and none inside of quotes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TOKEN: Final = re.compile(
    r"""
    '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*`   # texts and quoted names
    | (?<!:):\w+ | %\(\w+\)s | \$\d+ | \?       # parameters
    | [\w.]+ | :: | [<>!]= | <> | \|\|          # words, numbers and operators
    | \S
    """,
    re.VERBOSE,
)
_WIDTH: Final = 100
_INDENT: Final = "  "
# What begins a line: the words, and how many words belong to it.
_CLAUSES: Final = (
    ("INSERT", "INTO"),
    ("DELETE", "FROM"),
    ("LEFT", "OUTER", "JOIN"),
    ("INNER", "JOIN"),
    ("UNION", "ALL"),
    ("ORDER", "BY"),
    ("GROUP", "BY"),
    ("ON", "CONFLICT"),
    ("FOR", "UPDATE"),
    ("FOR", "SHARE"),
    ("FOR", "KEY", "SHARE"),
    ("LOCK", "IN"),
    ("FETCH", "FIRST"),
    ("WITH",),
    ("SELECT",),
    ("UPDATE",),
    ("DELETE",),
    ("FROM",),
    ("JOIN",),
    ("WHERE",),
    ("AND",),
    ("SET",),
    ("VALUES",),
    ("RETURNING",),
    ("LIMIT",),
    ("OFFSET",),
)
# Each value that is set, and each row, has a line, so that the diff of a change is small.
_APART: Final = frozenset({"SET", "VALUES"})
_MAY_BREAK: Final = frozenset({"AND", "OR", "WHEN", "ELSE"})
_BLOCKS: Final = frozenset({"SELECT", "WITH", "INSERT", "UPDATE", "DELETE"})


def tokens(statement: str) -> list[str]:
    """The words, texts, parameters and signs of a statement, without its white space."""
    return _TOKEN.findall(statement)


def formatted(statement: str) -> str:
    """The statement with each clause on a line of its own; subqueries are indented.

    It has the same tokens in the same order.
    """
    return "\n".join(
        text for level, line in _lines(statement) for text in _wrapped(line, _INDENT * level)
    )


def _lines(statement: str) -> Iterator[tuple[int, list[str]]]:
    """The lines with their levels, as tokens; each has the space that stands before it."""
    found = list(_TOKEN.finditer(statement))
    words = [match[0].upper() for match in found]
    line: list[str] = []
    # By how many levels each open parenthesis indents: by none unless it holds a query.
    parentheses: list[int] = []
    cases = free = level = 0
    for place, match in enumerate(found):
        token, word = match[0], words[place]
        closed = parentheses.pop() if word == ")" and parentheses else 0
        in_query = not cases and (not parentheses or parentheses[-1])
        clause = _clause(words, place) if in_query and place >= free else 0
        if line and (closed or clause):
            yield level, line
            line = []
        if not line:
            # A condition is a level deeper than its clause, and so is what closes its query.
            level = sum(parentheses) + max(closed - 1, 0)
        free = max(free, place + clause)
        cases += (word == "CASE") - (word == "END")
        spaced = place > 0 and found[place - 1].end() < match.start()
        line.append(f" {token}" if spaced and line else token)
        if word == "(":
            query = not cases and words[place + 1 : place + 2] and words[place + 1] in _BLOCKS
            parentheses.append((2 if line[0].upper() == "AND" else 1) if query else 0)
            if query:
                yield level, line
                line = []
    if line:
        yield level, line


def _clause(words: Sequence[str], place: int) -> int:
    """How many words of a clause begin here; 0 if none does."""
    for clause in _CLAUSES:
        if tuple(words[place : place + len(clause)]) == clause:
            return len(clause)
    return 0


def _wrapped(line: Sequence[str], indent: str) -> Iterator[str]:
    """Break a long line after commas and before conditions."""
    first = line[0].upper()
    # The values of a row, and the columns for them, are in parentheses.
    deepest = 1 if first in {"VALUES", "INSERT"} else 0
    indent += _INDENT if first == "AND" else ""
    depth, pieces, apart = 0, [""], [False]
    for token in line:
        word = token.strip().upper()
        ends = pieces[-1].strip().endswith(",") and depth <= deepest
        if ends or (token.startswith(" ") and word in _MAY_BREAK):
            pieces.append("")
            apart.append(first in _APART and depth == 0 and word not in _MAY_BREAK)
        pieces[-1] += token
        depth += (word == "(") - (word == ")")
    text = indent + pieces[0]
    deeper = indent + _INDENT * 2
    for piece, alone in zip(pieces[1:], apart[1:], strict=True):
        if alone or len(text) + len(piece) > _WIDTH:
            yield text
            text = f"{deeper}{'' if alone or first != 'SET' else _INDENT * 2}{piece.strip()}"
        else:
            text += piece
    yield text
