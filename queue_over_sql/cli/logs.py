"""The log of commands that run until they are stopped: its options and its formats."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Annotated

import typer

from queue_over_sql.errors import visible

LogLevelOption = Annotated[
    str,
    typer.Option(
        metavar="debug|info|warning|error", help="Log level; the log goes to standard error."
    ),
]
LogFormatOption = Annotated[
    str, typer.Option(metavar="text|json", help="Log format: text, or one JSON object per line.")
]
LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}


class LogFormatter(logging.Formatter):
    """Hides the passwords of URLs, and escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """The finished line, and below it the traceback if there is one."""
        from queue_over_sql.values.texts import hide_passwords

        return visible(hide_passwords(super().format(record)))


class JsonLogFormatter(logging.Formatter):
    """Writes a record as one line of JSON, with its extra fields; hides the passwords of URLs.

    The fields are ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``message``, ``process``, those
    of ``extra``, and ``exception`` with the traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The finished line."""
        from queue_over_sql.values.texts import hide_passwords

        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        shown = {
            name: hide_passwords(value) if isinstance(value, str) else value
            for name, value in fields.items()
        }
        return json.dumps(shown, default=str)


# The attributes of every record; all others come from `extra`.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime"}


def start_logging(level: str, form: str = "text", *, show_process: bool = False) -> None:
    """Log to standard error from `level` on; a usage error for an unknown level or form."""
    if level.lower() not in LEVELS:
        raise typer.BadParameter(
            f"{level!r} is not one of {', '.join(LEVELS)}", param_hint="--log-level"
        )
    if form not in {"text", "json"}:
        raise typer.BadParameter(f"{form!r} is not one of text, json", param_hint="--log-format")
    process = "%(process)d " if show_process else ""
    text = LogFormatter(f"%(asctime)s {process}%(levelname)-7s %(name)s  %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLogFormatter() if form == "json" else text)
    logging.basicConfig(level=LEVELS[level.lower()], handlers=[handler], force=True)
