"""A server that boots: creates all its queues, starts, and publishes one message into each."""

from __future__ import annotations

import dataclasses

from queue_over_sql import QueueService, QueueSettings
from tests.chaos.roles.protocol import Reins, emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Which queues the server needs, and whether it runs until it is told to stop."""

    url: str
    queues: tuple[str, ...]
    stays: bool = False


def main(arguments: Arguments) -> None:
    """Say `ready`, then boot at `go`, together with all the others."""
    service = QueueService(arguments.url)
    reins = Reins()
    emit("ready")
    reins.go.wait()
    service.create_queues(
        {name: QueueSettings(lease=60.0, priorities=3) for name in arguments.queues}
    )
    with service:
        for name in arguments.queues:
            service.queue(name).publish({"token": name})
        emit("done")
        if arguments.stays:
            reins.stop.wait()


if __name__ == "__main__":
    play(main, Arguments)
