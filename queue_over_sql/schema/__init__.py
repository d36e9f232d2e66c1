"""The tables of queues, and the tables that all queues share."""

from __future__ import annotations

from typing import Final

RELEASE: Final = "0.1.0"
"""The version of this package."""
