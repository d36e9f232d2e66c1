"""A queue's own columns as option values, e.g. ``tenant:string(40):index``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer
from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, String, Text
from sqlalchemy.types import TypeEngine

COLUMN_HELP = (
    "A column of your own, repeatable: NAME:TYPE or NAME:TYPE:index, with TYPE one of string(N), "
    "text, integer, bigint, float, boolean, e.g. tenant:string(40):index."
)
SPEC = re.compile(r"(?P<name>[a-z]\w*):(?P<type>[a-z]+)(?:\((?P<length>\d+)\))?(?P<index>:index)?")
TYPES: dict[str, Callable[[], TypeEngine[Any]]] = {
    "text": Text,
    "integer": Integer,
    "bigint": BigInteger,
    "float": Float,
    "boolean": Boolean,
}


def parse_column(text: str) -> Column[Any]:
    """The nullable column that `text` describes; `typer.BadParameter` for anything else."""
    match = SPEC.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not NAME:TYPE. {COLUMN_HELP}", param_hint="--column")
    return Column(
        match["name"],
        _column_type(text, match["type"], match["length"]),
        nullable=True,
        index=match["index"] is not None,
    )


def _column_type(text: str, name: str, length: str | None) -> TypeEngine[Any]:
    if name == "string" and length is not None:
        return String(int(length))
    if name not in TYPES or length is not None:
        raise typer.BadParameter(f"{text!r}: no such type. {COLUMN_HELP}", param_hint="--column")
    return TYPES[name]()
