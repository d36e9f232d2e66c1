"""Pages of the admin: the queues of the backends, their tasks, and a task with its errors."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from queue_over_sql import NoResult, QueueError, QueueNotFound
from queue_over_sql.contrib.django.backend import Backend, our_backends
from queue_over_sql.contrib.django.models import Task
from queue_over_sql.values.humanize import duration_words
from queue_over_sql.values.states import Outcome, Status

if TYPE_CHECKING:
    from queue_over_sql import Message, Queue, QueueStats

_LISTED: Final = 100
_STATES: Final = [each.value for each in (*Status, *Outcome)]


@admin.register(Task)
class TaskAdmin(admin.ModelAdmin):
    """Lists the queues, lists and shows tasks, and requeues or cancels one."""

    def get_urls(self) -> list[URLPattern]:
        """The three pages."""
        site = self.admin_site.admin_view
        return [
            path("", site(self.queues), name="queue_over_sql_task_changelist"),
            # A queue may be called anything, also with slashes.
            path(
                "<str:alias>/<path:name>/<int:number>/",
                site(self.task),
                name="queue_over_sql_task_change",
            ),
            path("<str:alias>/<path:name>/", site(self.tasks), name="queue_over_sql_task_list"),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Tasks are enqueued by code."""
        del request
        return False

    def queues(self, request: HttpRequest) -> HttpResponse:
        """The queues with their counts."""
        self._check_may_look(request)
        found = [
            (backend.alias, name, *_stats(backend, name))
            for backend in our_backends()
            for name in sorted(backend.queues)
        ]
        return self._page(request, "queues", "Queues", queues=found)

    def tasks(self, request: HttpRequest, alias: str, name: str) -> HttpResponse:
        """Tasks of a queue in one state: the oldest that are not finished, or the newest that are.

        They are the dead letters unless another state is chosen.
        """
        self._check_may_look(request)
        _, queue = self._found(alias, name)
        state = request.GET.get("state", Outcome.FAILED.value)
        if state not in _STATES:
            raise Http404(state)
        live = state in {each.value for each in Status}
        selection: Any = (queue.messages if live else queue.archive.messages)(status=state)
        found = selection.list(_LISTED, newest_first=not live)
        more = {"alias": alias, "state": state, "states": _STATES, "limit": _LISTED, "live": live}
        return self._page(request, "tasks", name, tasks=found, **more)

    def task(self, request: HttpRequest, alias: str, name: str, number: int) -> HttpResponse:
        """A task with its attempts; a POST requeues it or cancels it."""
        self._check_may_look(request)
        backend, queue = self._found(alias, name)
        message = backend.message(queue, number) if number < 2**63 else None
        if message is None:
            raise Http404(number)
        if request.method == "POST":
            return self._act(request, queue, message, alias)
        more = {
            "alias": alias,
            "queue": name,
            "attempts": queue.attempts(number),
            "why": queue.why(number),
            "returned": _returned(queue, message),
        }
        return self._page(request, "task", f"{name}:{number}", task=message, **more)

    def _act(
        self, request: HttpRequest, queue: Queue, message: Message, alias: str
    ) -> HttpResponse:
        if not self.has_change_permission(request):
            raise PermissionDenied
        # The task may have ended, or run again, since the page with the button was shown.
        act = request.POST.get("act")
        if act == "Cancel":
            done = queue.cancel(message.id, f"by {request.user.get_username()}")
            text = "The task was cancelled." if done else "The task has finished meanwhile."
        elif act == "Requeue":
            archived = queue.archive
            done = archived.messages(where=archived.table.c.id == message.id).requeue() == 1
            text = "The task is in the queue again." if done else "It was requeued meanwhile."
        else:
            return HttpResponseBadRequest("act must be Cancel or Requeue")
        self.message_user(request, text, messages.SUCCESS if done else messages.WARNING)
        place = reverse(
            "admin:queue_over_sql_task_list",
            args=(alias, queue.title),
            current_app=self.admin_site.name,
        )
        return HttpResponseRedirect(place)

    def _found(self, alias: str, name: str) -> tuple[Backend, Queue]:
        for backend in our_backends():
            if backend.alias == alias and name in backend.queues:
                try:
                    return backend, backend.queue(name)
                except QueueNotFound as error:
                    raise Http404(name) from error
        raise Http404(name)

    def _check_may_look(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _page(self, request: HttpRequest, template: str, title: str, **more: Any) -> HttpResponse:
        given = self.admin_site.each_context(request) | {
            "title": title,
            "opts": self.opts,
            "may_change": self.has_change_permission(request),
            **more,
        }
        # The pages' links stay in this site, which may be one of several.
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/queue_over_sql/{template}.html", given)


def _returned(queue: Queue, message: Message) -> str | None:
    """What a task that succeeded returned, as Python writes it."""
    if message.outcome == Outcome.DONE:
        # The archive may have removed it since.
        with contextlib.suppress(NoResult):
            return repr(queue.result(message.id))
    return None


def _stats(backend: Backend, name: str) -> tuple[QueueStats | None, str]:
    """The counts of a queue with the age of its oldest ready task, or what is wrong with it."""
    try:
        stats = backend.queue(name).stats()
    except QueueNotFound:
        return None, "There is no such queue yet: run manage.py migrate."
    except QueueError as error:
        return None, str(error)
    age = stats.oldest_ready_age
    return stats, duration_words(None if age is None else age.total_seconds())
