"""Type checkers know each argument of verbs whose result depends on some of them."""

from __future__ import annotations

import dataclasses
import inspect

from queue_over_sql import QueueSettings, Worker
from queue_over_sql.settings import QueueOptions
from queue_over_sql.worker.handler import HandlerOptions


def test_create_queue_has_all_settings() -> None:
    """With the types of the fields of ``QueueSettings``."""
    fields = {field.name: field.type for field in dataclasses.fields(QueueSettings)}
    del fields["kinds"]
    known = QueueOptions.__annotations__
    assert fields == {name: given.__forward_arg__ for name, given in known.items()}


def test_handle_has_all_options() -> None:
    """Those that do not change what a handler takes have a type of their own."""
    arguments = inspect.signature(Worker.handle).parameters.keys()
    named = {"self", "queue", "transactional", "batch"}
    assert arguments == named | HandlerOptions.__annotations__.keys()
