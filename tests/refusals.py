"""Check many values that must be refused in one test; an accepted value is named."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def refused(value: object, *errors: type[Exception], match: str = "") -> Iterator[None]:
    """Expect one of these errors for ``value``, with a text that matches; others are raised."""
    try:
        yield
    except errors as error:
        if re.search(match, str(error)) is None:
            pytest.fail(f"{value!r}: {error!r} does not match {match!r}")
    else:
        pytest.fail(f"{value!r} was accepted")
