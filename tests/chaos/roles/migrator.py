"""A process that upgrades tables of an earlier release and may be killed in the middle."""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any

from sqlalchemy import Engine, event

from queue_over_sql import QueueService
from tests.chaos.roles.protocol import emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The table after whose change the process dies, before it commits; none lets it live."""

    url: str
    dies_after: str = ""


def main(arguments: Arguments) -> None:
    """Upgrade at once, and say `done`."""

    @event.listens_for(Engine, "after_cursor_execute")
    def look(*details: Any) -> None:
        words = details[2].replace('"', "").split()
        if words[:3] == ["ALTER", "TABLE", arguments.dies_after]:
            os.kill(os.getpid(), signal.SIGKILL)

    service = QueueService(arguments.url)
    found = service.migrations.apply()
    emit("done", queues=[change.queue for change in found])


if __name__ == "__main__":
    play(main, Arguments)
