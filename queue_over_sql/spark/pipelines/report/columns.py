"""The names of the columns of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queue_over_sql.values.states import Outcome

Row = Mapping[str, Any]
"""A row of a table, by column."""

OUTCOMES: Final = tuple(map(str, Outcome))
"""The outcomes, which are columns with counts."""
STATUSES: Final = ("ready", "delayed", "claimed", "held")
"""The statuses of live messages, which are columns with counts."""
DURATIONS: Final = ("wait", "run", "total")
"""The durations of a finished message; see ``measures.with_durations``."""
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""The statistics of a duration, in columns such as ``wait_p50``."""
