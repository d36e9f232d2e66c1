"""The commands of operations that need nothing but a name, made of their declarations."""

from __future__ import annotations

from typing import Any, Final

from queue_over_sql.cli.options import YesOption, confirm
from queue_over_sql.cli.session import Commands, CommandSession
from queue_over_sql.management.operation import Command, EditOption, OperatorVerb
from queue_over_sql.management.operations import OPERATIONS
from queue_over_sql.values.humanize import counted

_NAMED: Final = {"queue": "queue", "schedule": "name", "consumer": "consumer_id"}
"""The field of ``--json`` with the name."""

EDITS: Final = {
    option.name: (operation, option)
    for operation in OPERATIONS.values()
    if isinstance(operation.commands, tuple)
    for option in operation.commands
    if isinstance(option, EditOption)
}
"""The options of ``edit`` that say what to do, and the operations that they stand for."""


def add_commands(commands: Commands, name: Any, *operations: str) -> None:
    """Add the commands of operations.

    Args:
        commands: the group of the commands, or the panel.
        name: the type of their argument, as Typer takes it.
        operations: names of ``OPERATIONS``.
    """
    for each in operations:
        operation = OPERATIONS[each]
        assert isinstance(operation.commands, tuple)  # noqa: S101 - a mistake of the table
        (command,) = operation.commands
        assert isinstance(command, Command)  # noqa: S101 - likewise
        function = _function(operation, command)
        function.__annotations__["name"] = name
        commands.add(command.name.rpartition(" ")[2], command.help)(function)


def _function(operation: OperatorVerb, command: Command) -> Any:
    def run(session: CommandSession, *, name: str) -> None:
        _run(session, operation, command, name, yes=True)

    def ask(session: CommandSession, *, name: str, yes: YesOption = False) -> None:
        _run(session, operation, command, name, yes=yes)

    return run if command.question is None else ask


def _run(
    session: CommandSession, operation: OperatorVerb, command: Command, name: str, *, yes: bool
) -> None:
    with session.connect() as service:
        if command.question is not None and operation.of == "queue":
            # Before the question, since there may be none of this name.
            service.queue(name)
        confirm((command.question or "").format(name=name), yes=yes)
        done = operation.run(service, name)
    count = done if command.count is not None else 0
    counts = {} if command.count is None else {command.count: count}
    session.output.record(
        {_NAMED[operation.of]: name, **command.record, **counts},
        human=command.done.format(name=name, n=counted(count, "message")),
    )
