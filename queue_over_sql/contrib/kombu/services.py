"""The services of this process: all connections to one database share one."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from queue_over_sql import (
    DatabaseUnavailable,
    Message,
    QueueError,
    QueueNotFound,
    QueueService,
    inside,
)

_log = logging.getLogger(__name__)


def is_counted(message: Message) -> bool:
    """Whether to count that a message was given back.

    The first time it is, so that the next delivery says that it is not the first one. Later ones
    are not, so that a task may wait by requeueing itself for ever.
    """
    return message.attempt == 1 < message.max_attempts


class Shared:
    """A service, and how many connections use it."""

    def __init__(self, place: str, service: QueueService) -> None:
        self.place = place
        self.service = service
        self.users = 0
        # What could not be given back, because the database did not answer.
        self.owed: list[Message] = []
        # The connections of this process that hold exclusive queues.
        self.exclusive: dict[str, object] = {}
        self._lock = threading.Lock()

    def give_back(self, messages: Iterable[Message] = ()) -> None:
        """Give back messages at their places, now or when the database answers again."""
        more = list(messages)
        with self._lock:
            owed, self.owed = self.owed + more, []
        groups = defaultdict[tuple[str, bool], list[Message]](list)
        for message in owed:
            groups[message.queue, is_counted(message)].append(message)
        for (queue, counted), together in groups.items():
            try:
                self.service.queue(queue).release(together, count=counted)
            except DatabaseUnavailable:
                with self._lock:
                    self.owed += together
            except QueueError as error:
                # The others have them already, or will when their leases end.
                _log.warning("Messages of queue %s were not given back: %s", queue, error)

    def drop_exclusive(self, connection: object) -> None:
        """Drop the exclusive queues of a connection, but not what another process took over."""
        held = [name for name, holder in self.exclusive.items() if holder is connection]
        for name in held:
            self.exclusive.pop(name, None)
        for name in held:
            with contextlib.suppress(QueueNotFound):
                queue = self.service.queue(name)
                owner = inside.record(self.service, queue.name).owner
                if owner is not None and owner == self.service.consumer_id:
                    self.service.drop_queue(name)


class _Services:
    """What one process has; a fork begins with nothing."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shared: dict[str, Shared] = {}


_services = _Services()
# A child must not even collect its parent's services.
_of_parents: Final[list[_Services]] = []


def _forget() -> None:
    global _services  # noqa: PLW0603 - there is one for each process
    _of_parents.append(_services)
    _services = _Services()


os.register_at_fork(after_in_child=_forget)


# What the consumers of this process and of its children are called; empty: as their host.
_named: Final[dict[str, str]] = {}


def _name_consumers(sender: str, **_: Any) -> None:
    _named["consumer_name"] = sender


# kombu may be used without Celery.
with contextlib.suppress(ImportError):
    from celery.signals import celeryd_init

    # Before a worker connects, and with its node's name: ``celery@host``.
    celeryd_init.connect(_name_consumers)


def acquire(url: str, options: Mapping[str, Any]) -> Shared:
    """This process's service of a database; ``leave`` it."""
    place = f"{url} {sorted(options.items())!r}"
    with _services.lock:
        found = _services.shared.get(place)
        if found is None:
            service = QueueService(url, **{**_named, **options})
            found = _services.shared[place] = Shared(place, service)
        found.users += 1
        return found


def leave(shared: Shared) -> None:
    """Use a service no longer; the last user stops it."""
    with _services.lock:
        shared.users -= 1
        if shared.users:
            return
        _services.shared.pop(shared.place, None)
    shared.service.stop()


def count() -> int:
    """How many services this process has."""
    return len(_services.shared)


@atexit.register
def _stop_all() -> None:
    # What a program leaves open would keep its messages until its heartbeat is overdue.
    for each in list(_services.shared.values()):
        each.service.stop()
