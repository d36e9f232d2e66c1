"""Values that a column holds and its Python type does not are delivered as they are."""

from __future__ import annotations

from datetime import time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from queue_over_sql.values.json_lines import to_json
from tests.contract.existing_tables.users_tables import own_row

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService

BIG = 2**53 + 1

# The type of a column, values as literals, and what is delivered.
COLUMNS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "mysql": [
        (
            "TIME(6)",
            {
                "'02:30:00'": time(2, 30),
                "'26:30:00'": timedelta(hours=26, minutes=30),
                "'-02:30:00'": timedelta(hours=-2, minutes=-30),
                "'-838:00:00.5'": -timedelta(hours=838, seconds=0.5),
            },
        ),
        ("TINYINT(1)", {"5": 5, "1": 1}),
        ("DECIMAL(20, 0)", {str(BIG): Decimal(BIG)}),
    ],
    "sqlite": [
        ("BOOLEAN", {"1": True, "0": False, "'f'": "f", "5": 5}),
        ("NUMERIC", {str(BIG): Decimal(BIG), "1.5": Decimal("1.5")}),
        ("INTEGER", {str(BIG): BIG}),
    ],
}
COLUMNS["mariadb"] = COLUMNS["mysql"]


@pytest.mark.engines("mysql", "mariadb", "sqlite")
def test_no_value_is_changed(service: QueueService, engine: Engine, engine_name: str) -> None:
    """Neither a length of more than a day, nor text in a BOOLEAN, nor an integer beyond 2⁵³."""
    for number, (kind, values) in enumerate(COLUMNS[engine_name]):
        name = f"odd{number}"
        with engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v {kind})"))
        queue = service.adopt_queue(name, name)
        with engine.begin() as connection:
            for key, literal in enumerate(values, 1):
                connection.execute(text(f"INSERT INTO {name} (id, v) VALUES ({key}, {literal})"))
        queue.enqueue()
        listed = [own_row(message)["v"] for message in queue.messages().list()]
        messages = queue.consume(len(values))
        expected = list(values.values())
        assert expected == listed == [own_row(message)["v"] for message in messages], kind
        assert list(map(type, expected)) == list(map(type, listed)), kind
        assert all(to_json({"v": value}) for value in listed)
        for message in messages:
            message.ack()
