"""Type checkers know each argument of verbs whose result depends on some of them."""

from __future__ import annotations

import dataclasses
import inspect

from queue_over_sql import EffectiveSettings, QueueService, QueueSettings, Worker
from queue_over_sql.cli.queues import OF_ADOPTED, SETTING_OPTIONS
from queue_over_sql.settings import _KINDS, OptionsOfAdopted, QueueOptions
from queue_over_sql.values.options import names_of
from queue_over_sql.web.api import shapes
from queue_over_sql.worker.handler import HandlerOptions


def test_create_queue_has_all_settings() -> None:
    """With the types of the fields of ``QueueSettings``."""
    fields = {field.name: field.type for field in dataclasses.fields(QueueSettings)}
    del fields["kinds"]
    known = QueueOptions.__annotations__
    assert fields == {name: given.__forward_arg__ for name, given in known.items()}


def test_each_setting_has_all_its_places() -> None:
    """It is checked, stored, documented, and offered by the command line and over HTTP."""
    settings = set(names_of(QueueOptions))
    assert settings == _KINDS.keys() - {"kinds"}
    assert settings == {field.name for field in dataclasses.fields(EffectiveSettings)} - {
        "adoption"
    }
    assert settings == SETTING_OPTIONS.keys()
    # What a client of the HTTP API cannot say: these are objects of Python.
    assert settings - {"retry", "columns"} == set(shapes.QueueSettings.__struct_fields__)
    assert set() == settings - set(shapes.Queue.__struct_fields__)
    said = str(inspect.getdoc(QueueService.create_queue))
    assert [] == [name for name in settings if f"\n    {name}: " not in said]


def test_adopted_queues_have_their_settings() -> None:
    """The command offers what the verb takes."""
    assert set(names_of(OptionsOfAdopted)) == set(OF_ADOPTED)


def test_handle_has_all_options() -> None:
    """Those that do not change what a handler takes have a type of their own."""
    arguments = inspect.signature(Worker.handle).parameters.keys()
    named = {"self", "queue", "transactional", "batch"}
    assert arguments == named | HandlerOptions.__annotations__.keys()
