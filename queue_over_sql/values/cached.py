"""Values that an object computes once."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T_co = TypeVar("T_co", covariant=True)


class cached_property(functools.cached_property[T_co]):  # noqa: N801, TID251 - as in functools
    """As in ``functools``, which before Python 3.12 has a lock that all objects share.

    A child that was forked while another thread held that lock would wait for it for ever.
    """

    def __init__(self, func: Callable[[Any], T_co]) -> None:
        super().__init__(func)
        self.lock = contextlib.nullcontext()
