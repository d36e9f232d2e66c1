"""Queues: their settings and counts, and the consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from queue_over_sql import ExponentialBackoff, QueueService, inside
from queue_over_sql.errors import QueueError, QueueNotFound
from queue_over_sql.web.api import shapes, showing
from queue_over_sql.web.api.endpoints import Call, Endpoints, run_named
from queue_over_sql.web.problems import Problem
from queue_over_sql.web.settings import Role

if TYPE_CHECKING:
    from queue_over_sql import QueueStats

endpoints = Endpoints("queues")

_NO_SETTINGS: Final = ("name", "paused", "retry", "columns", "table")


@endpoints.add("GET", "/queues", Role.VIEWER, of_some_queues=True)
def list_queues(call: Call) -> shapes.Queues:
    """List all queues of the caller and their settings, by name."""
    found = []
    unreadable = []
    for record in inside.records(call.service):
        if not call.principal.may_use(record.name):
            continue
        try:
            found.append(_shown(call.service, record))
        except QueueError:
            unreadable.append(record.name)
    return shapes.Queues(queues=found, unreadable=unreadable)


@endpoints.add("GET", "/queues/{queue}", Role.VIEWER, problems=(404,))
def show_queue(call: Call, queue: str) -> shapes.Queue:
    """Show a queue's settings, and whether it is paused."""
    call.service.queue(queue)
    return _shown(call.service, inside.record(call.service, queue))


def _create_queue(call: Call, queue: str, body: shapes.PutQueue) -> shapes.Queue:
    given = _settings_in(call.service, queue, msgspec.to_builtins(body))
    receiver = given.get("dead_letter_queue")
    if receiver is not None and receiver != _present_receiver(call.service, queue):
        call.insist_on(receiver)
    created = call.do(queue, **given).value
    return _shown(call.service, inside.record(call.service, created.name))


def _present_receiver(service: QueueService, name: str) -> str | None:
    try:
        settings = inside.settings_of(service, inside.record(service, name)).settings
    except QueueNotFound:
        return None
    return settings.dead_letter_queue


def _settings_in(service: QueueService, name: str, given: dict[str, Any]) -> dict[str, Any]:
    # All that GET shows may come back, but only settings can change.
    if given.keys().isdisjoint(_NO_SETTINGS):
        return given
    try:
        present = msgspec.to_builtins(_shown(service, inside.record(service, name)))
    except QueueNotFound:
        retry = inside.settings(service).retry_policies.describe(ExponentialBackoff())
        present = {"name": name, "paused": False, "retry": retry, "columns": [], "table": None}
    for each in _NO_SETTINGS:
        if each in given and given[each] != present[each]:
            text = (
                f"{each} of queue {name} cannot be changed here: leave it out, or send it as GET "
                "shows it."
            )
            raise Problem(422, "not-valid", text)
    settings = {each: value for each, value in given.items() if each not in _NO_SETTINGS}
    if present["table"] is None:
        return settings
    # An adopted table does not accept all settings.
    return {each: value for each, value in settings.items() if value != present[each]}


def _drop_queue(call: Call, queue: str, query: shapes.Confirmed) -> None:
    _check_confirmed(query, queue)
    call.do(queue)


endpoints.operation("settings", _create_queue)
endpoints.operation("drop", _drop_queue)


@endpoints.add("GET", "/queues/{queue}/stats", Role.VIEWER, problems=(404,))
async def queue_stats(call: Call, queue: str) -> shapes.Stats:
    """Count the messages of a queue by status and outcome; simultaneous requests share a count."""

    def count() -> QueueStats:
        with call.reading():
            return call.service.queue(queue).stats()

    stats = await call.api.stats.of(queue, lambda: call.api.threads.run(count))
    age = stats.oldest_ready_age
    names = set(shapes.Stats.__struct_fields__) - {"oldest_ready_age"}
    return shapes.Stats(
        **{name: getattr(stats, name) for name in names},
        oldest_ready_age=None if age is None else age.total_seconds(),
    )


def _purge_queue(call: Call, queue: str, body: shapes.Purge) -> shapes.Count:
    _check_confirmed(body, queue)
    return shapes.Count(count=call.do(queue, claimed=body.claimed).count or 0)


endpoints.operation("pause", run_named)
endpoints.operation("resume", run_named)
endpoints.operation("purge", _purge_queue)


@endpoints.add("GET", "/queues/{queue}/groups", Role.VIEWER, problems=(404,))
def list_groups(call: Call, queue: str, query: shapes.GroupsQuery) -> shapes.Groups:
    """List the groups that have messages, or that an operator paused or configured."""
    found = call.service.queue(queue).groups.list(by=query.by, limit=query.limit)
    return shapes.Groups(groups=[*map(showing.group, found)])


def _change_group(call: Call, queue: str, body: shapes.GroupName) -> None:
    call.do(queue, group=body.group)


def _configure_group(call: Call, queue: str, body: shapes.GroupRules) -> None:
    call.do(queue, **msgspec.to_builtins(body))


for _name in ("pause-group", "resume-group", "unblock-group"):
    endpoints.operation(_name, _change_group)
endpoints.operation("configure-group", _configure_group)


@endpoints.add("GET", "/consumers", Role.VIEWER)
def list_consumers(call: Call) -> shapes.Consumers:
    """List all consumers registered in the database."""
    return shapes.Consumers(consumers=[*map(showing.consumer, call.service.consumers())])


def _shown(service: QueueService, record: inside.QueueRecord) -> shapes.Queue:
    settings, retry, columns = inside.settings_of(service, record)
    shown = showing.queue(record.name, settings, retry, paused=record.paused)
    shown.columns = columns
    return shown


def _check_confirmed(given: shapes.Confirmed, queue: str) -> None:
    if given.confirm != queue:
        text = "This cannot be undone: confirm must repeat the name of the queue."
        raise Problem(409, "not-confirmed", text)
