"""A server that starts with its own schedule, and runs its reaper until it is stopped."""

from __future__ import annotations

import dataclasses

from queue_over_sql import QueueService
from tests.chaos.roles.protocol import Reins, emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the server schedules, and how."""

    url: str
    every: float
    reaper_interval: float = 0.1


def main(arguments: Arguments) -> None:
    """Add the schedule as all servers do, say `ready`, and fire until told to stop."""
    reins = Reins()
    service = QueueService(arguments.url, reaper_interval=arguments.reaper_interval)
    with service:
        service.create_queue("jobs")
        service.schedules.add("tick", "jobs", "tick", every=arguments.every, missed="all")
        emit("ready")
        reins.stop.wait()


if __name__ == "__main__":
    play(main, Arguments)
