"""Names of what a report tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queue_over_sql.message import Outcome

Row = Mapping[str, Any]
"""A row of a table by its columns."""

OUTCOMES: Final = tuple(map(str, Outcome))
"""How messages ended, each a column that counts them."""
STATUSES: Final = ("ready", "delayed", "claimed", "held")
"""How live messages stand, likewise."""
DURATIONS: Final = ("wait", "run", "total")
"""What is measured of a finished message; see ``measures.with_durations``."""
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""What is told of a duration, each by a column such as ``wait_p50``."""
