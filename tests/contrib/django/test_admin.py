"""The pages of Django's admin."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any

import pytest

from queue_over_sql.testing import drain
from tests.contrib.django import site

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Any]:
    """The module of the tasks, after ``migrate``, which creates the queues."""
    site.set_up()
    site.use_database(sqlite_url)
    from django.core.management import call_command

    from queue_over_sql.contrib.django import stop_services
    from tests.contrib.django import shop_tasks

    call_command("migrate", verbosity=0)
    yield shop_tasks
    stop_services()


def test_a_failed_task_is_found_and_requeued(shop: Any) -> None:
    """From the list of queues to its traceback and back; who may only view cannot requeue."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    from queue_over_sql.contrib.django import service
    from queue_over_sql.contrib.django.running import make_worker

    result = shop.refuse.enqueue()
    with pytest.raises(LookupError):
        drain(make_worker())
    shop.add.enqueue("<b>bold</b>")
    viewer = User.objects.create_user("vera", is_staff=True)
    User.objects.create_superuser("otto")
    nobody, vera, otto = Client(), Client(), Client()
    vera.force_login(viewer)
    otto.force_login(User.objects.get(username="otto"))
    queues, tasks, failed = (
        f"/admin/queue_over_sql/task/{each}"
        for each in ("", "default/default/", "default/default/1/")
    )
    assert [302, 403] == [client.get(queues).status_code for client in (nobody, vera)]
    viewer.user_permissions.add(Permission.objects.get(codename="view_task"))

    def read(address: str, client: Client = vera) -> str:
        answer = client.get(address)
        assert 200 == answer.status_code
        return html.unescape(answer.content.decode())

    assert "default/default/" in read(queues)
    assert re.search(r"<td>\d[\d.]* m?s</td>", read(queues))  # how long one is ready
    assert "no such customer: 17" in read(tasks)
    assert "&lt;b&gt;bold" in vera.get(f"{tasks}?state=ready").content.decode()
    assert "raise LookupError(REFUSED)" in read(failed)
    assert "Requeue" not in read(failed)
    assert "Requeue" in read(failed, otto)
    assert 403 == vera.post(failed, {"act": "Requeue"}).status_code
    result.refresh()
    assert "FAILED" == result.status

    # Its page was opened before it ended.
    late = otto.post(failed, {"act": "Cancel"}, follow=True)
    assert "finished meanwhile" in late.content.decode()
    assert 400 == otto.post(failed).status_code
    again = otto.post(failed, {"act": "Requeue"}, follow=True)
    assert "in the queue again" in again.content.decode()
    assert "Cancel" in read(f"{tasks}2/", otto)
    assert 302 == otto.post(f"{tasks}2/", {"act": "Cancel"}).status_code
    assert "cancelled by operator: by otto" in read(f"{tasks}?state=rejected")
    assert "shop_tasks.refuse" in read(f"{tasks}?state=ready")

    # The links of another admin site stay in it.
    office = [each.replace("/admin/", "/office/") for each in (queues, tasks, f"{tasks}2/")]
    for each in office:
        assert "/admin/" not in read(each, otto)
    assert office[1] == otto.post(office[2], {"act": "Requeue"}).headers["Location"]
    assert "default/reports/daily/" in read(queues)
    slashed = "/admin/queue_over_sql/task/default/reports/daily/"
    assert "There are no failed tasks." in read(slashed)

    service().drop_queue("mails")
    assert "run manage.py migrate" in read(queues)
    for wrong in (
        f"{tasks}99/",
        f"{tasks}{2**70}/",
        f"{tasks}?state=odd",
        "/admin/queue_over_sql/task/default/other/",
    ):
        assert 404 == vera.get(wrong).status_code


def test_a_task_shows_what_it_returned(shop: Any) -> None:
    """And how often it may still be tried, as long as it may."""
    from django.contrib.auth.models import User
    from django.test import Client

    from queue_over_sql.contrib.django.running import make_worker

    shop.double.enqueue(21)
    assert 1 == drain(make_worker())
    shop.double.enqueue(22)
    client = Client()
    client.force_login(User.objects.create_superuser("otto"))
    pages = (client.get(f"/admin/queue_over_sql/task/default/default/{each}/") for each in (1, 2))
    done, ready = (html.unescape(page.content.decode()) for page in pages)
    assert "<th>Returned</th><td>{'doubled': 42}</td>" in done
    assert "<th>Attempts</th><td>1</td>" in done
    assert "<th>Attempts</th><td>0 of 5</td>" in ready
    assert "Returned" not in ready


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize("everything", [False, True])
def test_a_dump_of_the_site_leaves_the_queues_out(shop: Any, *, everything: bool) -> None:
    """What the pages of the admin belong to has no table."""
    from django.core.management import call_command

    assert shop is not None
    out = io.StringIO()
    call_command("dumpdata", "queue_over_sql", all=everything, stdout=out)
    assert "[]" == out.getvalue().strip()
