"""The commands `worker` and `reaper`, which run until they are stopped."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from queue_over_sql.cli.options import (
    RUNNING_PANEL,
    ConsumerTimeoutOption,
    argument,
    duration,
    number,
)
from queue_over_sql.cli.session import URL_VARIABLE, Commands, Session
from queue_over_sql.cli.signals import (
    ExitCode,
    Stop,
    blocked_signals,
    stop_on_signals,
    unblock_signals,
)
from queue_over_sql.cli.values import import_object
from queue_over_sql.errors import visible
from queue_over_sql.values.backoff import Backoff
from queue_over_sql.values.durations import duration_text

if TYPE_CHECKING:
    from queue_over_sql import Worker
    from queue_over_sql.observability.health import Health, Report
    from queue_over_sql.observability.probes import Page, Probed

LogLevelOption = Annotated[
    str,
    typer.Option(
        metavar="debug|info|warning|error", help="Log level; the log goes to standard error."
    ),
]
LogFormatOption = Annotated[
    str, typer.Option(metavar="text|json", help="Log format: text, or one JSON object per line.")
]
HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        show_default=False,
        help="Serve /livez, /readyz and /metrics at this address. A port without a host listens "
        "on this machine only; port 0 picks a free port, which the log shows.",
    ),
]
LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}
logger = logging.getLogger(__name__)

SUPERVISED = "--supervised"
"""The hidden option of workers that a supervisor started."""
FIRST_RESTART, LAST_RESTART = 0.5, 30.0
_LOOK_SECONDS = 0.1
# A process that ran for this long restarts after the shortest pause.
_STEADY_SECONDS = 30.0
# Wrong usage, or no such queue: another process would end in the same way.
_WRONG_CALL = (ExitCode.USAGE, ExitCode.NOTHING)
# None: it is running. The others after OK: a signal to all processes came before or after its work.
_IN_ORDER = (
    None,
    ExitCode.OK,
    ExitCode.TERMINATED,
    ExitCode.INTERRUPTED,
    -signal.SIGTERM,
    -signal.SIGINT,
)
_HOW = {
    1: "All processes of the worker finish their current messages.",
    2: "All processes of the worker stop immediately.",
}
# The supervisor's requests to its processes: stop, and report their health.
_STOP, _ASK = b".", b"?"
# How long they have to stop, how long a report is valid, and how long a start may take.
_ANSWER_SECONDS, _FRESH_SECONDS, _STARTING_SECONDS = 4.0, 1.0, 60.0
# How long ago the last look of the supervisor may be.
_LATE_SECONDS = 30.0
_SOURCES_SECONDS = 0.5


commands = Commands(RUNNING_PANEL)


@commands.add("worker")
def worker(
    session: Session,
    *,
    target: Annotated[
        str,
        argument(
            "MODULE:WORKER",
            "Import path of the Worker object, e.g. myapp.jobs:worker. The current folder is "
            "importable. Without a colon the object is named worker.",
        ),
    ],
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            show_default=False,
            help="Run only the handlers of these queues, separated by commas.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        number("Number of threads in each process.", show_default="the setting of the Worker"),
    ] = None,
    processes: Annotated[int, number("Number of processes that run the Worker.")] = 1,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="For development: start again when a Python file below the current folder "
            "changes.",
        ),
    ] = False,
    until_empty: Annotated[
        bool,
        typer.Option(
            "--until-empty", help="Exit when no handler has a due message, for cron jobs."
        ),
    ] = False,
    http: HttpOption = None,
    hung_after: Annotated[
        float | None,
        duration(
            "/livez fails if every thread is in a handler call that has run for longer than this.",
            show_default="no limit",
        ),
    ] = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
    supervised: Annotated[
        bool, typer.Option(SUPERVISED, hidden=True, help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Run your Worker until SIGTERM or Ctrl-C.

    The Worker then finishes its current messages and releases the others. A second signal stops it
    immediately. Your module decides which database the Worker uses; --url only sets
    QUEUE_OVER_SQL_URL before your module is imported.

    With --processes, a process that dies is restarted after 0.5 s. If it dies again soon, the pause
    doubles, up to 30 s. The messages of a dead process are redelivered when its heartbeat expires.
    The command passes signals on to all processes. If the command itself is killed, the processes
    finish their current messages and stop.

    With --reload, an error in your module does not end the command. The command imports your module
    again when a file changes.

    With --http the command answers health probes, at one address for all processes. The Worker is
    live while its threads make progress, even if the database is unreachable. The Worker is ready
    if the database answers, its heartbeat is recent and it is not stopping. The command also
    reports "live" and "ready" to systemd.
    """
    from queue_over_sql.observability.health import Health
    from queue_over_sql.worker.worker import narrow

    if reload and until_empty:
        raise typer.BadParameter("use either --reload or --until-empty, not both")
    if supervised:
        unblock_signals()
    several = processes > 1 or reload
    start_logging(log_level, log_format, show_process=several or supervised)
    if session.connection.url is not None:
        os.environ[URL_VARIABLE] = session.connection.url
    if several:
        arguments = ["worker", target, "--log-level", log_level, "--log-format", log_format]
        arguments += [] if hung_after is None else ["--hung-after", f"{hung_after:f}s"]
        arguments += [] if queues is None else ["--queues", queues]
        arguments += [] if concurrency is None else ["--concurrency", str(concurrency)]
        arguments += ["--until-empty"] if until_empty else []
        raise typer.Exit(supervise(arguments, processes, http=http, reload=reload))
    found = load_worker(target)
    named = [name.strip() for name in queues.split(",")] if queues is not None else ()
    try:
        narrow(found, named, concurrency)
    except ValueError as error:
        raise typer.BadParameter(f"{target}: {error}") from error
    health = Health(found, hung_after=hung_after)
    if supervised:
        obey_supervisor(found, health)
    logger.info("Worker %s runs in process %s.", target, os.getpid())
    with contextlib.nullcontext() if supervised else probing(health, http):
        found.run(signals=True, until_empty=until_empty)
    logger.info("Worker %s has stopped.", target)


def load_worker(target: str) -> Worker:
    """Import the Worker at ``module:name``; a usage error says what it is instead."""
    from queue_over_sql import Worker

    try:
        found = import_object(target, "worker")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="MODULE:WORKER") from error
    if not isinstance(found, Worker):
        name = type(found).__name__
        advice = (
            "run it in a program of yours: asyncio.run(worker.run(signals=True))"
            if name == "AsyncWorker"
            else "create one with service.worker()"
        )
        raise typer.BadParameter(
            f"{target} is of type {name}, not Worker: {advice}", param_hint="MODULE:WORKER"
        )
    return found


@contextlib.contextmanager
def probing(probed: Probed, address: str | None) -> Iterator[None]:
    """Answer probes at an address, if one is given, and notify systemd, if it is the parent."""
    from queue_over_sql.observability.probes import ProbeServer, SystemdNotifier

    server: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if address is not None:
        server = ProbeServer(probed, address, pages=metrics_pages())
    with server, SystemdNotifier(probed):
        yield


def metrics_pages(*collectors: object) -> dict[str, Callable[[], Page]]:
    """The metrics page, with further collectors; none without prometheus_client."""
    from queue_over_sql.observability.probes import Page

    if not _has_prometheus():
        return {}
    from queue_over_sql.observability.prometheus import CONTENT_TYPE, exposition

    return {"/metrics": lambda: Page(exposition(*collectors).decode(), kind=CONTENT_TYPE)}


def _has_prometheus() -> bool:
    return find_spec("prometheus_client") is not None


@contextlib.contextmanager
def _metrics_together() -> Iterator[None]:
    name = "PROMETHEUS_MULTIPROC_DIR"
    if not _has_prometheus() or name in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="queue-over-sql-metrics-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]


@commands.add("reaper")
def reaper(
    session: Session,
    *,
    interval: Annotated[float, duration("Time between two passes.", show_default="1s")] = 1.0,
    consumer_timeout: ConsumerTimeoutOption = 30.0,
    http: HttpOption = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "text",
) -> None:
    """Run the reaper as a daemon until SIGTERM or Ctrl-C.

    The reaper releases the messages of expired leases and dead consumers, dead-letters messages
    that are out of attempts, prunes archives, and publishes the messages of schedules. Every
    started service also runs a reaper. Use the daemon if none of your services runs all the time.
    You can run several reapers at the same time.
    """
    from queue_over_sql.observability.health import Health

    start_logging(log_level, log_format)
    observer = None
    if http is not None and _has_prometheus():
        from queue_over_sql.observability.prometheus import PrometheusObserver

        observer = PrometheusObserver()
    service = session.service(
        consumer_name="reaper",
        consumer_timeout=consumer_timeout,
        reaper_interval=interval,
        observer=observer,
    )
    with stop_on_signals(at_once=True) as stop, service, probing(Health(service), http):
        logger.info("The reaper runs in process %s, every %g s.", os.getpid(), interval)
        stop.asked.wait()
        logger.info("The reaper is stopping.")


class LogFormatter(logging.Formatter):
    """Hides the passwords of URLs, and escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """The finished line, and below it the traceback if there is one."""
        from queue_over_sql.dialects.engines import hide_passwords

        return visible(hide_passwords(super().format(record)))


class JsonLogFormatter(logging.Formatter):
    """Writes a record as one line of JSON, with its extra fields; hides the passwords of URLs.

    The fields are ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``message``, ``process``, those
    of ``extra``, and ``exception`` with the traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The finished line."""
        from queue_over_sql.dialects.engines import hide_passwords

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


def supervise(
    arguments: Sequence[str], count: int, *, http: str | None = None, reload: bool = False
) -> int:
    """Run worker processes until SIGTERM or SIGINT; returns the exit code.

    The first signal drains the processes, the second one stops them immediately. A process that
    dies is restarted after 0.5 s. The pause doubles up to 30 s, until a process has run for 30 s. A
    process that ends by itself with exit code 0 is not restarted.

    Args:
        arguments: the arguments of ``queue-over-sql`` in each process.
        count: how many processes.
        http: the address for the health probes of all of them.
        reload: whether to drain and restart them whenever a Python file here changes.
    """
    sources = _Sources() if reload else None
    processes: list[_WorkerProcess] = []
    probed = _Supervised(processes, count)
    together = _metrics_together() if http is not None else contextlib.nullcontext()
    with together, stop_on_signals() as stop, probing(probed, http):
        try:
            processes += [_WorkerProcess(arguments) for _ in range(count)]
            return _watch(processes, stop, probed, sources)
        finally:
            for process in processes:
                process.let_go()


def _watch(
    processes: Sequence[_WorkerProcess], stop: Stop, probed: _Supervised, sources: _Sources | None
) -> int:
    told, result = 0, ExitCode.OK
    while (sources and not told) or not all(process.is_over for process in processes):
        probed.looked_at, probed.draining = time.monotonic(), bool(told)
        asked = 2 if stop.now.is_set() else int(stop.asked.is_set() or result in _WRONG_CALL)
        if asked > told:
            logger.info(_HOW[asked])
            for process in processes:
                process.tell(asked - told)
            told = asked
        if sources and not told and sources.have_changed():
            logger.info("A Python file has changed: the worker starts again.")
            for process in processes:
                process.start_again()
        for process in processes:
            code = process.look(restart=not told)
            if code in _WRONG_CALL and process.is_over and not sources:
                result = ExitCode(code)
            elif told and code not in _IN_ORDER:
                result = result or ExitCode.FAILED
        time.sleep(_LOOK_SECONDS)
    return result


class _Sources:
    """The Python files below the current folder, without those of environments."""

    def __init__(self) -> None:
        self._known = self._look()
        self._looked_at = time.monotonic()

    def have_changed(self) -> bool:
        """Whether a file was changed, added or removed; checks twice a second."""
        if time.monotonic() < self._looked_at + _SOURCES_SECONDS:
            return False
        before, self._known = self._known, self._look()
        self._looked_at = time.monotonic()
        return before != self._known

    def _look(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder, folders, files in os.walk("."):
            if "pyvenv.cfg" in files:
                folders.clear()
                continue
            folders[:] = [each for each in folders if not each.startswith((".", "__"))]
            for file in files:
                # It may just have been removed.
                with contextlib.suppress(OSError):
                    if file.endswith(".py"):
                        path = os.path.join(folder, file)  # noqa: PTH118 - many, at each look
                        found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116
        return found


class _WorkerProcess:
    """One process, and its replacements."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "queue_over_sql", *arguments, SUPERVISED]
        self._backoff = Backoff(FIRST_RESTART, LAST_RESTART)
        self._running: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None
        self._has_answered = self._was_asked = False
        self._unsaid = b""
        self._began = 0.0
        self._start_at: float | None = None
        self._starts = 0
        self._again = False
        self._start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended and will not be restarted."""
        return self._running is None and self._start_at is None

    def look(self, *, restart: bool) -> int | None:
        """Start a replacement if it died; returns the exit code if it has just ended."""
        self._say(b"")
        if not restart:
            self._start_at = None
        if self._start_at is not None and time.monotonic() >= self._start_at:
            self._start()
        if self._running is None or (code := self._running.poll()) is None:
            return None
        number = self._running.pid
        self.let_go()
        again, self._again = self._again and restart, False
        if again:
            self._start()
            return None
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        final = code in _WRONG_CALL and self._starts == 1
        if not code or not restart or final:
            level = logging.INFO if code in _IN_ORDER else logging.ERROR
            logger.log(level, "Process %s ended: %s.", number, how)
        else:
            self._start_later(f"Process {number} died: {how}")
        return code

    def start_again(self) -> None:
        """Drain it and start another, at once if none is running."""
        if self._running is None:
            self._backoff.reset()
            self._start()
        elif not self._again:
            self._again = True
            self.tell(1)

    def tell(self, times: int) -> None:
        """Tell it to drain; the second time, to stop at once."""
        self._say(_STOP * times)

    def ask(self) -> None:
        """Request a health report, and forget the last one."""
        if self._pipe is None:
            return
        with contextlib.suppress(OSError):
            while self._pipe.recv(65_536):
                self._was_asked = False
        if not self._was_asked:
            # Only then, so that the requests to a process that does not read do not pile up.
            self._was_asked = True
            with contextlib.suppress(OSError):
                self._pipe.send(_ASK)

    def answer(self, ends_at: float) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The reasons why it is not live, and why it is not ready; empty if it is."""
        running, pipe = self._running, self._pipe
        if running is None or pipe is None:
            return {}, {"process": "it has ended" if self.is_over else "it is being restarted"}
        name, said = f"process {running.pid}", b""
        try:
            while not said.endswith(b"\n"):
                _await_words(pipe, ends_at)
                if not (more := pipe.recv(65_536)):
                    return {}, {name: "it has ended"}
                said += more
        except OSError:
            if not self._has_answered and time.monotonic() < self._began + _STARTING_SECONDS:
                return {}, {name: "it starts"}
            silent = {name: f"it does not answer within {_ANSWER_SECONDS:g} s"}
            return silent, silent
        self._has_answered, self._was_asked = True, False
        live, ready = json.loads(said.splitlines()[-1])
        return {f"{name}: {k}": v for k, v in live.items()}, {
            f"{name}: {k}": v for k, v in ready.items()
        }

    def let_go(self) -> None:
        """Close the pipe to it, so that a running process drains."""
        if self._pipe is not None:
            self._pipe.close()
        self._running = self._pipe = None

    def _say(self, words: bytes) -> None:
        self._unsaid += words
        if self._pipe is not None and self._unsaid:
            # The next look tries again if the socket is full, and notices a process that has died.
            with contextlib.suppress(OSError):
                self._unsaid = self._unsaid[self._pipe.send(self._unsaid) :]

    def _start(self) -> None:
        self._start_at, self._began = None, time.monotonic()
        # Its standard input, through which it also answers.
        self._pipe, theirs = socket.socketpair()
        # Its other end keeps waiting for requests.
        self._pipe.setblocking(False)  # noqa: FBT003 - its only form
        self._has_answered = self._was_asked = False
        self._unsaid = b""
        try:
            # In its own process group, so that Ctrl-C only reaches the supervisor.
            with blocked_signals():
                self._running = subprocess.Popen(
                    self._command, stdin=theirs.fileno(), process_group=0
                )
        except OSError as error:
            self.let_go()
            self._start_later(f"No process could be started: {error}")
            return
        finally:
            theirs.close()
        self._starts += 1
        logger.info("Process %s starts.", self._running.pid)

    def _start_later(self, reason: str) -> None:
        if time.monotonic() - self._began >= _STEADY_SECONDS:
            self._backoff.reset()
        pause = self._backoff.pause()
        self._start_at = time.monotonic() + pause
        logger.error("%s. Another starts in %.1f s.", reason, pause)


def _await_words(pipe: socket.socket, ends_at: float) -> None:
    ready = select.poll()
    ready.register(pipe, select.POLLIN)
    if not ready.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        raise TimeoutError


class _Supervised:
    """Answers probes for all processes of a supervisor: each must be healthy."""

    def __init__(self, processes: Sequence[_WorkerProcess], count: int) -> None:
        self._processes = processes
        self._count = count
        self.draining = False
        self.looked_at = time.monotonic()
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._said: tuple[dict[str, str], dict[str, str]] = {}, {}

    def live(self) -> Report:
        """Whether each process is live, and this one supervises them."""
        checks, _ = self._ask()
        late = time.monotonic() - self.looked_at
        well = late < _LATE_SECONDS
        return _report(
            {"supervisor": "ok" if well else f"it is {duration_text(round(late))} late", **checks}
        )

    def ready(self) -> Report:
        """Whether each process is."""
        _, checks = self._ask()
        return _report(
            {"supervisor": "its processes are stopping" if self.draining else "ok", **checks}
        )

    def _ask(self) -> tuple[dict[str, str], dict[str, str]]:
        with self._lock:
            if time.monotonic() < self._asked_at + _FRESH_SECONDS:
                return self._said
            processes = list(self._processes)
            for process in processes:
                process.ask()
            ends_at = time.monotonic() + _ANSWER_SECONDS
            answers = [process.answer(ends_at) for process in processes]
            live = {key: value for each, _ in answers for key, value in each.items()}
            ready = {key: value for _, each in answers for key, value in each.items()}
            if len(processes) < self._count:
                ready["process"] = "it starts"
            self._said, self._asked_at = (live, ready), time.monotonic()
            return self._said


def _report(checks: Mapping[str, str]) -> Report:
    from queue_over_sql.observability.health import Report

    return Report.of(checks)


def obey_supervisor(worker: Worker, health: Health) -> None:
    """Drain when the supervisor says so or is gone; stop immediately at its second request.

    When asked, the process reports why it is not live or not ready.
    """
    from queue_over_sql.worker.worker import stop_at_once

    # Programs that handlers start must neither read these requests nor wait for them.
    pipe, nothing = os.dup(sys.stdin.fileno()), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)

    def answer() -> None:
        said = json.dumps([health.live().checks, health.ready().checks])
        # The supervisor may be gone.
        with contextlib.suppress(OSError):
            os.write(pipe, said.encode() + b"\n")

    def wait() -> None:
        told = 0
        while word := os.read(pipe, 1):
            if word == _ASK:
                threading.Thread(target=answer, name="queue-over-sql-answer", daemon=True).start()
                continue
            told += 1
            if told == 1:
                logger.info("This process finishes its current messages and stops.")
                worker.stop()
            else:
                logger.warning("This process stops immediately.")
                stop_at_once(worker)
        if not told:
            logger.warning(
                "The process that started this one has ended. This process finishes its current "
                "messages and stops."
            )
            worker.stop()

    threading.Thread(target=wait, name="queue-over-sql-supervisor", daemon=True).start()
