"""What the command's exit codes mean, and which error ends in which code."""

from __future__ import annotations

from enum import IntEnum

from queue_over_sql import (
    ConsumerNotFound,
    DatabaseUnavailable,
    QueueError,
    QueueNotFound,
    RequestTimeout,
    ScheduleNotFound,
    TopicNotFound,
)


class ExitCode(IntEnum):
    """The exit codes of ``queue-over-sql``: the same for every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOTHING = 3
    UNAVAILABLE = 4
    INCOMPLETE = 5
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done; also a worker, reaper or consumer that was asked to stop and did",
    ExitCode.FAILED: "the operation was refused or failed; the reason is on standard error",
    ExitCode.USAGE: (
        "wrong usage: an unknown option, a value that cannot be read, no database URL, standard "
        "output closed, or standard input where it is read"
    ),
    ExitCode.NOTHING: (
        "nothing there: no such queue, topic, schedule or durable consumer, no message or reply in "
        "time, an empty list"
    ),
    ExitCode.UNAVAILABLE: "the database cannot be reached",
    ExitCode.INCOMPLETE: (
        "it ran to its end, but not everything succeeded: a command of `consume --exec` failed, "
        "`spark workers` gave messages up, `spark load` rejected rows, "
        "`edit` left messages to consumers that hold them, or the account of `demo` does not "
        "balance"
    ),
    ExitCode.INTERRUPTED: (
        "interrupted by SIGINT, as from the keyboard; also `consume` and `reaper` that were told a "
        "second time to stop, and `demo` and `spark workers` that any signal ended early"
    ),
    ExitCode.READER_GONE: (
        "whoever read its output has gone, as `head` does; it says no more, and `consume` leaves "
        "in the queue what could not be written"
    ),
    ExitCode.TERMINATED: "ended by SIGTERM before it was done",
}


_NOT_THERE = (QueueNotFound, TopicNotFound, ScheduleNotFound, ConsumerNotFound, RequestTimeout)


def exit_code_for(error: QueueError) -> ExitCode:
    """The exit code that tells a script what kind of `error` this was."""
    return exit_code_of(type(error))


def exit_code_of(kind: type[QueueError]) -> ExitCode:
    """The same of an error that is known by its class only."""
    if issubclass(kind, _NOT_THERE):
        return ExitCode.NOTHING
    if issubclass(kind, DatabaseUnavailable):
        return ExitCode.UNAVAILABLE
    return ExitCode.FAILED
