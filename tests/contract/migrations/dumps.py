"""The committed databases of an earlier release, loaded into a test's database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Engine

FOLDER = Path(__file__).parent / "dumps"


def load(engine: Engine, name: str) -> None:
    """Run the statements of the dump of one kind of database; it must be empty."""
    written = (FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    options = {"no_parameters": True}
    with engine.begin() as connection:
        for statement in written.removesuffix(";\n").split(";\n"):
            connection.exec_driver_sql(statement, execution_options=options).close()
