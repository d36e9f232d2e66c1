"""A server of the HTTP API on a given port."""

from __future__ import annotations

import dataclasses

import uvicorn

from queue_over_sql import QueueService
from queue_over_sql.web.api import standalone
from tests.chaos.roles.protocol import emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Which database it serves, and where."""

    url: str
    port: int


class _Server(uvicorn.Server):
    async def startup(self, *arguments: object, **options: object) -> None:
        """Tell the test when it listens."""
        await super().startup(*arguments, **options)  # type: ignore[arg-type]
        emit("ready")


def main(arguments: Arguments) -> None:
    """Serve until killed."""
    app = standalone(QueueService(arguments.url, consumer_timeout=2.0))
    options = uvicorn.Config(app, port=arguments.port, log_level="warning", proxy_headers=False)
    _Server(options).run()


if __name__ == "__main__":
    play(main, Arguments)
