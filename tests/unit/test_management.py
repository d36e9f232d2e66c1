"""Each operation of operators is offered by every interface, or the table says why not."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Final

import msgspec
import typer.main

import queue_over_sql
from queue_over_sql import (
    ArchiveSelection,
    Group,
    LiveSelection,
    Queue,
    QueueService,
    Schedules,
    Topic,
)
from queue_over_sql.cli.app import build_app
from queue_over_sql.cli.session import unwrapped
from queue_over_sql.management.operation import (
    Command,
    EditOption,
    OperatorVerb,
    Role,
    Without,
)
from queue_over_sql.management.operations import OPERATIONS
from queue_over_sql.settings import QueueSettings
from queue_over_sql.web.api.app import ENDPOINTS
from queue_over_sql.web.buttons import BUTTONS
from queue_over_sql.web.tables import WebStore

OWNERS: Final = {
    each.__name__: each
    for each in (
        *(Queue, Group, LiveSelection, ArchiveSelection, QueueService, Schedules, Topic),
        WebStore,
    )
}
TEMPLATES: Final = Path(queue_over_sql.__file__).parent / "web" / "templates"
# How an operation is run, and not what it does.
OF_THE_LIBRARY: Final = {"self", "connection", "progress", "name", "consumer_id", "settings"}
# Messages, by what HTTP and the command line call their ids; `lasts` says how long a token does.
CALLED: Final = {"message_id": "ids", "lasts": "expires"}
# What a client of the HTTP API cannot say: these are objects of Python.
ONLY_IN_PYTHON: Final = {"settings": {"kinds", "retry", "columns"}}
# What programs do, which is no operation of operators: they publish, claim and settle.
OF_PROGRAMS: Final = {
    *("publish", "publish_many", "publish_stream", "publish_to_topic"),
    *("claim", "ack", "nack", "release", "reject", "extend"),
}


def arguments(operation: OperatorVerb) -> set[str]:
    """The arguments of its verb, as the interfaces call them."""
    owner, _, method = operation.verb.partition(".")
    verb = getattr(OWNERS[owner], method)
    names = set(inspect.signature(verb).parameters) - OF_THE_LIBRARY
    if operation.name == "settings":
        names = set(QueueSettings.__annotations__)
    return {CALLED.get(name, name) for name in names}


def commands() -> dict[str, Any]:
    """Every command by its words."""
    found: dict[str, Any] = {}

    def walk(command: Any, *words: str) -> None:
        found[" ".join(words)] = command
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, *words, name)

    walk(typer.main.get_command(build_app()))
    return found


def test_every_verb_is_one_of_the_library() -> None:
    """By its class and its method."""
    for name, operation in OPERATIONS.items():
        owner, _, method = operation.verb.partition(".")
        assert callable(getattr(OWNERS[owner], method)), name


def test_every_operation_has_its_commands() -> None:
    """With the help of the table, and with all arguments of the verb."""
    there = commands()
    options = {param.name: param for param in there["edit"].params}
    for name, operation in OPERATIONS.items():
        if isinstance(operation.commands, Without):
            assert operation.commands.reason, name
            continue
        offered: set[str] = set()
        for command in operation.commands:
            if isinstance(command, EditOption):
                assert command.help == options[command.name].help, name
                offered |= {command.name} if command.given is None else set(command.given)
                continue
            offered |= {param.name for param in there[command.name].params}
            if isinstance(command, Command):
                assert unwrapped(command.help) == there[command.name].help, name
        # `--column` is given once for each.
        offered |= {f"{each}s" for each in offered}
        assert set() == arguments(operation) - offered - {"kinds"}, name


def test_every_operation_is_in_the_http_api() -> None:
    """Once, with all arguments of the verb; and what changes something there is declared."""
    for name, operation in OPERATIONS.items():
        found = [each for each in ENDPOINTS if each.operation is operation]
        if isinstance(operation.http, Without):
            assert [] == found, name
            assert operation.http.reason, name
            continue
        (endpoint,) = found
        assert operation.role == endpoint.role, name
        assert endpoint.writes, name
        shape = endpoint.body or endpoint.query
        fields = {field.name for field in msgspec.structs.fields(shape)} if shape else set()
        missing = arguments(operation) - fields - ONLY_IN_PYTHON.get(name, set())
        assert set() == missing, name
    others = {each.id for each in ENDPOINTS if each.writes and each.operation is None}
    assert OF_PROGRAMS == others


def test_every_operation_has_a_button() -> None:
    """On a page, for who may press it, with what undoes it or a question."""
    pages = "".join(path.read_text() for path in TEMPLATES.glob("*.html"))
    for name, operation in OPERATIONS.items():
        if isinstance(operation.buttons, Without):
            assert operation.buttons.reason, name
            continue
        for button in operation.buttons:
            assert (operation, button) == BUTTONS[button.name]
            assert f"'{button.name}'" in pages, name
            assert button.undo is None or button.undo in BUTTONS, name
            # Only a token is made without either: to remove it is another button.
            assert button.undo or button.question or name == "add-token", name
            assert set(button.given) <= arguments(operation), name


def test_what_cannot_be_undone_is_asked_for_everywhere() -> None:
    """A button that is dangerous asks, and its command takes ``--yes``."""
    there = commands()
    for _, (operation, button) in sorted(BUTTONS.items()):
        if not button.danger:
            continue
        assert button.question is not None, button.name
        for command in operation.commands if isinstance(operation.commands, tuple) else ():
            words = "edit" if isinstance(command, EditOption) else command.name
            assert "yes" in {param.name for param in there[words].params}, words


def test_nobody_who_only_looks_changes_anything() -> None:
    """Each operation needs a higher role than that of viewers."""
    assert [] == [each.name for each in OPERATIONS.values() if Role.VIEWER.covers(each.role)]
