"""Messages of a queue start runs of Airflow's DAGs."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """What Airflow asks a package for, to know what it brings."""
    # Airflow's command line asks, too: nothing of Airflow is imported here.
    return {
        "package-name": "queue-over-sql",
        "name": "Queue over SQL",
        "description": "Message queues in your SQL database.",
        "queues": ["queue_over_sql.contrib.airflow.provider.QueueProvider"],
        "triggers": [
            {
                "integration-name": "Queue over SQL",
                "python-modules": ["queue_over_sql.contrib.airflow.trigger"],
            }
        ],
    }
