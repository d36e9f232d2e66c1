"""The group `spark`: the data pipeline around the queues, each command in a module of its own."""

from __future__ import annotations

import typer

from queue_over_sql.cli import (
    spark_export,
    spark_load,
    spark_process,
    spark_report,
    spark_workers,
)
from queue_over_sql.cli.spark_options import PANEL

# A module here has ``register(group)``, which adds its commands by ``command(group, …)``.
COMMANDS = (spark_load, spark_process, spark_workers, spark_export, spark_report)


def register(app: typer.Typer) -> None:
    """Add the group with the commands of all its modules to `app`."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Move large numbers of messages by Apache Spark: load, work, export, report.",
    )
    for module in COMMANDS:
        module.register(group)
    app.add_typer(group, name="spark", rich_help_panel=PANEL)
