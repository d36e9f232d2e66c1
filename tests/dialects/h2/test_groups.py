"""Groups need rows that a claim can skip, which H2 has since 2.2.220."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect

from queue_over_sql import UnsupportedByEngine
from queue_over_sql.service import parts_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_over_sql import QueueService

pytestmark = pytest.mark.engines("h2")


def test_an_early_version_refuses_groups(service: QueueService, engine: Engine) -> None:
    """A queue that exists stays without groups, and one that does not exist is not created."""
    service.create_queue("plain")
    if parts_of(service).connections.dialect.features.skip_locked:
        assert service.create_queue("plain", group_limit=1).settings.group_limit == 1
        return
    for name in ("plain", "orders"):
        with pytest.raises(UnsupportedByEngine, match=r"2\.2\.220 or newer.*Nothing was changed"):
            service.create_queue(name, group_limit=1)
    assert service.queue("plain").settings.group_limit is None
    assert not inspect(engine).has_table("queue_orders")
