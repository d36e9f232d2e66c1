"""Two queues over one table of the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queue_over_sql import QueueSchemaMismatch
from tests.contract.existing_tables.users_tables import create_invoices

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql.testing.plugin import MakeService


def test_two_queues_over_one_table_do_not_see_each_other(
    make_service: MakeService, engine: Engine
) -> None:
    """The columns of the one are no facts of the other's rows, and may go while it works."""
    create_invoices(engine, 1)
    first = make_service().adopt_queue("first", "invoices")
    second = make_service().adopt_queue("second", "invoices", column_prefix="b_")
    reader = make_service().queue("first")
    first.publish({"company_id": 1, "paid": False})
    assert 2 == second.enqueue()
    [message] = reader.consume()
    assert message.row is not None
    assert not [name for name in message.row if name.startswith("b_")]
    assert make_service().drop_queue("second")
    reader.ack(message)
    first.publish({"company_id": 2, "paid": False})
    assert 1 == len(reader.consume())


@pytest.mark.engines("sqlite")
def test_one_table_is_adopted_once_under_one_prefix(
    make_service: MakeService, engine: Engine
) -> None:
    """The other queue is named."""
    create_invoices(engine, 1)
    make_service().adopt_queue("first", "invoices")
    with pytest.raises(QueueSchemaMismatch, match="first"):
        make_service().adopt_queue("second", "invoices")
