"""Schedules: list, show, run, pause and resume them."""

from __future__ import annotations

from queue_over_sql.web.api import shapes, showing
from queue_over_sql.web.api.operations import Call, Operations
from queue_over_sql.web.settings import Role

operations = Operations("schedules")


@operations.add("GET", "/schedules", Role.VIEWER)
def list_schedules(call: Call) -> shapes.Schedules:
    """List all schedules, by name."""
    found = call.service.schedules.list()
    return shapes.Schedules(schedules=[showing.schedule(each, call.api.mask) for each in found])


@operations.add("GET", "/schedules/{name:path}/upcoming", Role.VIEWER, problems=(404,))
def upcoming(call: Call, name: str, query: shapes.UpcomingQuery) -> shapes.Upcoming:
    """Show the next times of a schedule, even if it is paused."""
    return shapes.Upcoming(upcoming=call.service.schedules.upcoming(name, query.count))


@operations.act(
    "POST", "/schedules/{name:path}/pause", "pause-schedule", status=204, problems=(404,)
)
def pause_schedule(call: Call, name: str) -> None:
    """Publish nothing until it is resumed, and remove its messages for times to come.

    Messages for times that have passed stay, also those that wait because of its `delay`.
    """
    call.do(schedule=name)


@operations.act(
    "POST", "/schedules/{name:path}/resume", "resume-schedule", status=204, problems=(404,)
)
def resume_schedule(call: Call, name: str) -> None:
    """Continue with the next time; the times during the pause do not count as missed."""
    call.do(schedule=name)


@operations.act(
    "POST",
    "/schedules/{name:path}/run",
    "run-schedule",
    status=201,
    problems=(404, 409, 413),
)
def run_schedule(call: Call, name: str) -> shapes.PublishedMessage:
    """Publish one message now, even if it is paused; its next instants stay as they are."""
    return showing.published(call.do(schedule=name).value)


@operations.add("GET", "/schedules/{name:path}", Role.VIEWER, problems=(404,))
def show_schedule(call: Call, name: str) -> shapes.Schedule:
    """Show a schedule."""
    return showing.schedule(call.service.schedules.get(name), call.api.mask)
