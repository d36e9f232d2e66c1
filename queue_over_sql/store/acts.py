"""Acts: what is done on a connection, and whether that takes a transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")


class Act(NamedTuple, Generic[T]):
    """Something to do on a connection.

    Attributes:
        do: does it.
        atomic: it is several statements, so it needs a transaction around it.
    """

    do: Callable[[Connection], T]
    atomic: bool = True
