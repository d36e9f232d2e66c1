"""Schedules: list, show, run, pause and resume them."""

from __future__ import annotations

from queue_over_sql.web.api import shapes, showing
from queue_over_sql.web.api.endpoints import Call, Endpoints, run_named
from queue_over_sql.web.settings import Role

endpoints = Endpoints("schedules")


@endpoints.add("GET", "/schedules", Role.VIEWER)
def list_schedules(call: Call) -> shapes.Schedules:
    """List all schedules, by name."""
    found = call.service.schedules.list()
    return shapes.Schedules(schedules=[showing.schedule(each, call.api.mask) for each in found])


@endpoints.add("GET", "/schedules/{name:path}/upcoming", Role.VIEWER, problems=(404,))
def upcoming(call: Call, name: str, query: shapes.UpcomingQuery) -> shapes.Upcoming:
    """Show the next times of a schedule, even if it is paused."""
    return shapes.Upcoming(upcoming=call.service.schedules.upcoming(name, query.count))


def _run_schedule(call: Call, name: str) -> shapes.PublishedMessage:
    return showing.published(call.do(name).value)


endpoints.operation("pause-schedule", run_named)
endpoints.operation("resume-schedule", run_named)
endpoints.operation("run-schedule", _run_schedule)


@endpoints.add("GET", "/schedules/{name:path}", Role.VIEWER, problems=(404,))
def show_schedule(call: Call, name: str) -> shapes.Schedule:
    """Show a schedule."""
    return showing.schedule(call.service.schedules.get(name), call.api.mask)
