"""A consumer that acts only on the test's commands."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Sequence
from typing import Any

from queue_over_sql import Message, Queue, QueueError, QueueService
from tests.chaos.roles.protocol import commands, emit, play


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Where the puppet consumes, and how soon it counts as dead."""

    url: str
    queue: str = "jobs"
    consumer_timeout: float = 30.0
    reaper_interval: float = 0.2
    started: bool = True
    """False: never `start()`ed, so without a reaper; only its heartbeat runs."""
    rests_in_claims: bool = False
    """It stays where a claim has locked the rate of the queue, and has not spent."""
    dies_of_expired: str = ""
    """`before` or `after`: killed where what it claimed ends as expired."""


class Puppet:
    """Holds what it was given until it is told what to do with it."""

    def __init__(self, service: QueueService, queue: Queue) -> None:
        """Obey on this queue."""
        self._service = service
        self._queue = queue
        self._held: dict[int, Message] = {}

    def obey(self, command: str, details: dict[str, Any]) -> dict[str, Any]:
        """Run one verb; an error of the library is an answer, not the end."""
        try:
            return {"error": None, **self._run(command, details)}
        except QueueError as error:
            return {"error": type(error).__name__}

    def _run(self, command: str, details: dict[str, Any]) -> dict[str, Any]:
        if command == "consume":
            return {"messages": [self._keep(m) for m in self._queue.consume(**details)]}
        if command == "settle":
            # By its token, whoever claimed it.
            message = self._queue.held(details.pop("token"))
            getattr(message, details.pop("verb"))(**details)
            return {"payload": message.payload}
        if command == "subscribe":
            own = self._service.create_queue(details["queue"], temporary=True)
            self._service.topic(details["topic"]).subscribe(own)
            return {}
        if command == "consumer_id":
            return {"consumer_id": self._service.consumer_id}
        message = self._held[details.pop("id")]
        getattr(message, command)(**details)
        return {}

    def _keep(self, message: Message) -> dict[str, Any]:
        self._held[message.id] = message
        return {
            "id": message.id,
            "attempt": message.attempt,
            "consumer_id": message.consumer_id,
            "consumer_round": message.consumer_round,
            "token": message.token,
        }


def _die_of_expired(when: str) -> None:
    # An earlier release, whose puppet this may be, has no such module.
    from queue_over_sql.settling.settlements import Settlements

    expire = Settlements.expire

    def killed(settlements: Settlements, messages: Sequence[Message]) -> None:
        if when == "after":
            expire(settlements, messages)
        os.kill(os.getpid(), signal.SIGKILL)

    # No public name lies between a claim and the end of what had expired.
    setattr(Settlements, "expire", killed)  # noqa: B010 - mypy refuses to assign to a method


def _rest_in_claims() -> None:
    from queue_over_sql.limits import tokens

    spend = tokens.spend

    def rest(*given: Any) -> None:
        emit("claiming")
        next(commands())
        spend(*given)

    # No public name lies between the lock and what it is for.
    setattr(tokens, "spend", rest)  # noqa: B010 - mypy refuses to assign to a function


def main(arguments: Arguments) -> None:
    """Obey until the pipe is closed."""
    if arguments.rests_in_claims:
        _rest_in_claims()
    if arguments.dies_of_expired:
        _die_of_expired(arguments.dies_of_expired)
    service = QueueService(
        arguments.url,
        consumer_timeout=arguments.consumer_timeout,
        reaper_interval=arguments.reaper_interval,
    )
    if arguments.started:
        service.start()
    puppet = Puppet(service, service.queue(arguments.queue))
    emit("ready")
    for order in commands():
        emit("reply", **puppet.obey(order.pop("command"), order))
    service.stop()


if __name__ == "__main__":
    play(main, Arguments)
