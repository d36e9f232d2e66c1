"""The operation for migrations that makes a queue of a model's table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from queue_over_sql import QueueNotFound
from queue_over_sql.testing import drain

pytestmark = pytest.mark.engines("sqlite", "postgresql", "mysql", "mariadb")


def test_a_models_table_becomes_a_queue_and_back(shop: Any) -> None:
    """Unfinished rows become messages; what handlers write stays when the queue is dropped."""
    from django.db import NotSupportedError, connection, migrations, models, transaction
    from django.db.migrations.state import ProjectState
    from django.utils import timezone

    from queue_over_sql.contrib.django import service
    from queue_over_sql.contrib.django.operations import AdoptQueue

    assert shop is not None
    create = migrations.CreateModel(
        "Letter",
        [
            ("id", models.BigAutoField(primary_key=True)),
            ("address", models.CharField(max_length=80)),
            # The queue has such columns, too.
            ("sent_at", models.DateTimeField(null=True, db_column="finished_at")),
            ("state", models.CharField(max_length=8, default="new", db_column="status")),
        ],
    )
    options: dict[str, Any] = {"column_prefix": "q_", "max_attempts": 2}
    new = "status = 'new'"
    adopt = AdoptQueue("Letter", "letters", finished="sent_at", where=new, **options)
    before, after = ProjectState(), ProjectState()
    create.state_forwards("post", after)
    with connection.schema_editor() as editor:
        create.database_forwards("post", editor, before, after)
    letters: Any = after.apps.get_model("post", "Letter").objects
    now = timezone.now()
    for sent_at in (None, now, None):
        letters.create(address="a", sent_at=sent_at)
    letters.create(address="a", state="failed")
    atomic: Any = SimpleNamespace(connection=connection)
    with pytest.raises(NotSupportedError, match="write atomic = False"), transaction.atomic():
        adopt.database_forwards("post", atomic, after, after)
    for _ in range(2):  # as after a crash
        with connection.schema_editor(atomic=False) as editor:
            adopt.database_forwards("post", editor, after, after)
    queue: Any = service().queue("letters")
    assert (2, 2) == (queue.stats().ready, queue.settings.max_attempts)
    with transaction.atomic():
        new = letters.create(address="b")
        assert 1 == queue.enqueue(queue.table.c.id == new.pk, connection=connection)
        letters.create(address="not yet")
    worker = service().worker()

    @worker.handle("letters")
    def send(message: Any) -> None:
        with transaction.atomic():
            letters.filter(pk=message.id).update(sent_at=now)
            message.ack(connection=connection)

    assert 3 == drain(worker)
    with connection.schema_editor(atomic=False) as editor:
        adopt.database_backwards("post", editor, after, after)
    with pytest.raises(QueueNotFound):
        service().queue("letters").stats()
    with connection.cursor() as cursor:
        found = connection.introspection.get_table_description(cursor, "post_letter")
    assert ["id", "address", "finished_at", "status"] == [each.name for each in found]
    assert 4 == letters.filter(sent_at__isnull=False).count()
    with connection.schema_editor() as editor:
        create.database_backwards("post", editor, after, before)
