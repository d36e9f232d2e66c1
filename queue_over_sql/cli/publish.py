"""The commands `publish` and `request`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

from queue_over_sql import (
    DatabaseUnavailable,
    DuplicateKey,
    Publication,
    Published,
    QueueError,
)
from queue_over_sql.cli.lines import (
    BadLineError,
    Batch,
    LineFormat,
    LineReader,
    LineSource,
    is_standard_input,
    payload_line,
)
from queue_over_sql.cli.options import (
    MESSAGES_PANEL,
    OnConflictOption,
    QueueName,
    duration,
    message_options,
)
from queue_over_sql.cli.output import Output
from queue_over_sql.cli.session import Commands, CommandSession, in_words
from queue_over_sql.cli.signals import ExitCode
from queue_over_sql.values.checks import check_keyed
from queue_over_sql.values.humanize import counted
from queue_over_sql.values.json_lines import message_fields
from queue_over_sql.values.options import PUBLISH_OPTIONS, PublishOptions, RequestOptions

if TYPE_CHECKING:
    from rich.progress import Progress
    from sqlalchemy import Connection

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.values.states import OnConflict

RETRY_SECONDS = 5.0


class _EnoughError(Exception):
    """Ends the transaction with a rollback."""


def first_refused(
    service: QueueService, queue: Queue, batch: Sequence[Publication], on_conflict: OnConflict
) -> tuple[int, Exception] | None:
    """The index in `batch` of the first message that is rejected, and the reason.

    None if that is unknown, because each is accepted alone, the search takes too long, or the
        database cannot be reached. Nothing is published.
    """
    from queue_over_sql import inside

    found: list[tuple[int, Exception]] = []
    undone: set[int] = set()

    def probe(connection: Connection) -> None:
        deadline = time.monotonic() + RETRY_SECONDS
        for place, publication in enumerate(batch):
            try:
                [published] = queue.publish_many(
                    [publication], on_conflict=on_conflict, connection=connection
                )
                undone.add(published.id)
            except DatabaseUnavailable:
                break
            except DuplicateKey as error:
                own = error.id in undone
                found.append((place, DuplicateKey(error.queue, error.key, None) if own else error))
                break
            except (QueueError, ValueError, TypeError) as error:
                found.append((place, error))
                break
            if time.monotonic() > deadline:
                break
        raise _EnoughError

    try:
        with inside.transaction(service) as connection:
            probe(connection)
    except (_EnoughError, QueueError):
        return found[0] if found else None
    return None


class RefusedBatchError(Exception):
    """A batch of lines was not published; the text names the lines."""


def publish_one(
    output: Output, queue: Queue, reader: LineReader, text: str, on_conflict: OnConflict
) -> None:
    """Publish the message of the argument `text` and report its id and outcome."""
    publication = read_argument(reader, text)
    check_keyed(on_conflict, publication.key)
    with explaining_wrong_columns():
        [published] = queue.publish_many([publication], on_conflict=on_conflict)
    output.record(
        {"queue": queue.name, "id": published.id, "outcome": published.outcome},
        human=f"Message {published.id} {published.outcome} in queue {queue.name}.",
    )


@contextmanager
def explaining_wrong_columns() -> Iterator[None]:
    """Report an unknown column, or a value of the wrong type, as a usage error."""
    try:
        yield
    except TypeError as error:
        raise ValueError(str(error)) from error


def read_argument(
    reader: LineReader, text: str, *, otherwise: str | None = "--format text"
) -> Publication:
    """Read the message from the argument `text`; a usage error says what is wrong with it.

    The error suggests `otherwise`, the option for a plain text.
    """
    try:
        return reader.read(text)
    except (ValueError, RecursionError) as error:
        advice = "Write a JSON string as '\"like this\"'"
        if otherwise is not None:
            advice = f"{advice}, or use {otherwise}"
        raise typer.BadParameter(f"{error}. {advice}", param_hint="PAYLOAD") from error


def argument_format(queue: Queue) -> LineFormat:
    """The format of an argument to `queue` if no option gives it."""
    return LineFormat.PAYLOAD if queue.settings.payload == "json" else LineFormat.TEXT


def publish_lines(
    output: Output,
    service: QueueService,
    queue: Queue,
    reader: LineReader,
    path: Path | None,
    *,
    on_conflict: OnConflict,
    batch: int,
) -> None:
    """Publish the lines of `path` (None or ``-``: standard input), `batch` in one transaction.

    Exits with code 1 after an error, 4 if the database cannot be reached, and 2 after an invalid
    line. In all cases, and after an interrupt, everything before the failed batch or line is
    published, and the message says with which line to continue.
    """
    outcomes: Counter[str] = Counter()
    at_work: Batch | None = None
    with _opened(path) as stream, _progress_bar(output, stream) as bar:
        source = LineSource(stream, reader, bar, output)
        try:
            for lines in source.batches(batch):
                at_work = lines
                with _naming_lines(service, queue, lines, on_conflict):
                    outcomes.update(_publish_batch(queue, lines, on_conflict))
                source.published(lines)
                at_work = None
        except (BadLineError, RefusedBatchError) as error:
            output.error(f"{error}\n{_progress(source, error)}")
            raise typer.Exit(_exit_code(error)) from error
        except (KeyboardInterrupt, OSError):
            output.note(_progress_cut_off(source, at_work))
            raise
    total = sum(outcomes.values())
    output.record(
        {"queue": queue.name, "published": total, **outcomes},
        human=f"Published {counted(total, 'message')} to queue {queue.name}"
        f"{_outcomes_in_words(outcomes)}.",
    )


@contextmanager
def _naming_lines(
    service: QueueService, queue: Queue, lines: Batch, on_conflict: OnConflict
) -> Iterator[None]:
    try:
        yield
    except DatabaseUnavailable as error:
        raise RefusedBatchError(f"in {lines.name()}: {error}") from error
    except (QueueError, ValueError, TypeError) as error:
        found = first_refused(service, queue, lines.publications, on_conflict)
        if found is None:
            raise RefusedBatchError(f"in {lines.name()}: {in_words(error)}") from error
        place, reason = found
        text = in_words(reason)
        if isinstance(reason, DuplicateKey) and reason.id is None:
            [first, *_] = [
                number
                for number, each in zip(lines.numbers, lines.publications, strict=True)
                if each.key == reason.key
            ]
            text = f"line {first} has the same key. {text}"
        raise RefusedBatchError(f"line {lines.numbers[place]}: {text}") from error


def _progress_bar(output: Output, stream: BinaryIO) -> Progress:
    of_file = not is_standard_input(stream)
    return output.progress(total_known=of_file, of_bytes=of_file)


def _progress(source: LineSource, error: Exception) -> str:
    if isinstance(error.__cause__, DatabaseUnavailable):
        # The connection may have broken after the commit.
        rest = (
            "If the connection broke during the commit, the lines of this transaction may be "
            "published, too."
        )
        return f"{_done(source)} {rest}"
    return _progress_cut_off(source, None)


def _progress_cut_off(source: LineSource, at_work: Batch | None) -> str:
    rest = f"Line {source.next_line} and all that follow are not published: send them again."
    if at_work is not None:
        rest = (
            f"The transaction of {at_work.name()} was interrupted, so they may be published, too. "
            "The lines that follow are not."
        )
    return f"{_done(source)} {rest}"


def _done(source: LineSource) -> str:
    return f"Published so far: {counted(source.count, 'line')}."


def _exit_code(error: Exception) -> ExitCode:
    if isinstance(error, BadLineError):
        return ExitCode.USAGE
    unreachable = isinstance(error.__cause__, DatabaseUnavailable)
    return ExitCode.UNAVAILABLE if unreachable else ExitCode.FAILED


def _outcomes_in_words(outcomes: Counter[str]) -> str:
    if set(outcomes) <= {"created"}:
        return ""
    return ": " + ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))


def _publish_batch(queue: Queue, lines: Batch, on_conflict: OnConflict) -> Counter[str]:
    batch = lines.publications
    if on_conflict == "raise":
        return Counter(created=queue.load(batch, batch_size=len(batch)))
    results: list[Published] = queue.publish_many(batch, on_conflict=on_conflict)
    return Counter(str(published.outcome) for published in results)


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    if path is None or str(path) == "-":
        if sys.stdin is None:
            raise ValueError(
                "standard input is closed, so there are no lines to publish; give a PAYLOAD, a "
                "--file, or lines through a pipe"
            )
        yield sys.stdin.buffer
        return
    with path.open("rb") as stream:
        yield stream


PAYLOAD_HELP = (
    "The payload: JSON, or plain text for a queue of text or bytes (see --format). Without a "
    "PAYLOAD the command reads JSON Lines from --file or standard input."
)
FORMAT_HELP = (
    "Format of the argument or of each line. payload: the payload as JSON; for a queue of bytes, a "
    "JSON string of Base64. text: the payload as plain text. message: a JSON object with the "
    f"fields payload, {', '.join(PUBLISH_OPTIONS)}, as peek --json prints it. Default: "
    "payload. For a PAYLOAD argument to a queue of text or bytes the default is text."
)


commands = Commands(MESSAGES_PANEL)


@commands.add("publish")
@message_options(PublishOptions)
def publish(
    session: CommandSession,
    *,
    queue: QueueName,
    payload: Annotated[
        str | None, typer.Argument(metavar="PAYLOAD", show_default=False, help=PAYLOAD_HELP)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="PATH",
            help="Read JSON Lines from this file; - is standard input.",
        ),
    ] = None,
    line_format: Annotated[
        LineFormat | None,
        typer.Option(
            "--format", metavar="payload|text|message", show_default=False, help=FORMAT_HELP
        ),
    ] = None,
    on_conflict: OnConflictOption = "raise",
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, help="Lines per transaction.")
    ] = 1000,
    **given: Any,
) -> None:
    """Publish one message, or one per line of a file or of standard input.

    Each transaction publishes --batch lines. After an error, SIGINT or SIGTERM the command names
    the line from which you must publish again.
    """
    if payload is not None and file is not None:
        raise typer.BadParameter("use either a PAYLOAD or --file, not both")
    with session.connect() as service:
        target, way = service.queue(queue), cast("OnConflict", on_conflict)
        if payload is not None:
            reader = LineReader(
                target.settings.payload, line_format or argument_format(target), given
            )
            publish_one(session.output, target, reader, payload, way)
            return
        if "key" in given:
            raise typer.BadParameter(
                "many lines cannot share one --key: use --format message, with a key in each line"
            )
        reader = LineReader(target.settings.payload, line_format or LineFormat.PAYLOAD, given)
        publish_lines(session.output, service, target, reader, file, on_conflict=way, batch=batch)


REQUEST_FORMAT_HELP = (
    "Format of the argument. payload: the payload as JSON; for a queue of bytes, a JSON string of "
    "Base64. text: the payload as plain text. Default: payload. For a queue of text or bytes the "
    "default is text."
)


@commands.add("request")
@message_options(RequestOptions)
def request(
    session: CommandSession,
    *,
    queue: QueueName,
    payload: Annotated[
        str,
        typer.Argument(
            metavar="PAYLOAD",
            show_default=False,
            help="The request: JSON, or plain text for a queue of text or bytes (see --format).",
        ),
    ],
    timeout: Annotated[
        float, duration("How long to wait for the reply.", show_default="30s")
    ] = 30.0,
    line_format: Annotated[
        LineFormat | None,
        typer.Option(
            "--format", metavar="payload|text", show_default=False, help=REQUEST_FORMAT_HELP
        ),
    ] = None,
    reply_queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="An existing reply queue. Default: a temporary one.",
        ),
    ] = None,
    **given: Any,
) -> None:
    """Publish a message, wait for its consumer's reply, and print the reply.

    A handler replies with message.reply(...). With --json the output includes the reply's kind and
    headers. Exit code 3: no reply arrived in time. On a timeout or an interrupt the command
    withdraws the request if no consumer has claimed it.

    Example: queue-over-sql request prices '{"item": "tea"}' --timeout 5s
    """
    if line_format is LineFormat.MESSAGE:
        raise typer.BadParameter(
            "message is not possible for a request; choose payload or text", param_hint="--format"
        )
    with session.connect(reply_queue=reply_queue) as service:
        opened = service.queue(queue)
        reader = LineReader(opened.settings.payload, line_format or argument_format(opened), {})
        question = read_argument(reader, payload).payload
        with explaining_wrong_columns():
            reply = opened.request(question, timeout=timeout, **given)
        if session.output.machine:
            session.output.record(message_fields(reply))
        else:
            session.output.line(payload_line(reply, "json"))
