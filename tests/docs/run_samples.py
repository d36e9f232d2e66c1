"""Runs the samples of one page in this process: ``python run_samples.py plan.json``.

Python blocks share one namespace, as a reader would type them; shell blocks run in between, in
the same folder, and what they export holds from then on. A ``worker``, also one that is a command
of Django's, runs until its queues are empty. A ``reaper`` is asked to stop soon after it has
started. Both must end well.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

STAYING = re.compile(r"queue-over-sql (worker|reaper)\b|python -m django work\b")
UNTIL_EMPTY = """
from {module} import {function} as main
from queue_over_sql.worker.worker import Worker

run = Worker.run
Worker.run = lambda worker, **options: run(worker, **dict(options, until_empty=True))
main()
"""
OURS = ("queue_over_sql.cli", "main")
DJANGO = ("django.core.management", "execute_from_command_line")
EXPORT = re.compile(r"export (\w+)=(\S*)\Z")
RUNNING = "in process"
SECONDS_TO_START = 60.0
SECONDS_TO_RUN = 1.0
SECONDS_TO_STOP = 30.0
SECONDS_TO_WORK = 60.0


def main(plan: Path) -> None:
    """Run the blocks of a plan in order; what they print goes beside the plan."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    sys.path.insert(0, str(Path.cwd()))
    printed = []
    for step in json.loads(plan.read_text()):
        sys.stderr.write(f"--- {step['page']}:{step['line']}\n")
        printed.append(run_step(step, namespace))
    plan.with_suffix(".out").write_text(json.dumps(printed))


def run_step(step: dict[str, Any], namespace: dict[str, Any]) -> str:
    """Run one block; returns what it printed."""
    if step["file"] is not None:
        file = Path(step["file"])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(step["text"])
        return ""
    if step["language"] == "python":
        return run_python(step, namespace)
    return run_shell(step["text"])


def run_python(step: dict[str, Any], namespace: dict[str, Any]) -> str:
    """Run Python, its lines numbered as on the page."""
    numbered = "\n" * step["line"] + step["text"]
    # A reader's own module does not inherit the __future__ imports of this one.
    code = compile(numbered, step["page"], "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, namespace)  # noqa: S102 - the samples are this project's own
    return out.getvalue()


def run_shell(text: str) -> str:
    """Run shell commands; those that stay are run by themselves, line by line."""
    printed, together = "", list[str]()
    for line in text.splitlines():
        if export := EXPORT.match(line):
            os.environ[export[1]] = export[2]
        elif STAYING.match(line):
            printed += bash("\n".join(together))
            together = []
            if not line.startswith("queue-over-sql reaper") and "--processes" not in line:
                work_until_empty(line)
            else:
                stay_and_stop(line)
        else:
            together.append(line)
    return printed + bash("\n".join(together))


def bash(text: str) -> str:
    """Run shell commands, of which none may fail."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {text}")
    return done.stdout


def work_until_empty(line: str) -> None:
    """Run a worker until no message is due."""
    words = shlex.split(line)
    if words[0] == "python":
        (module, function), arguments = DJANGO, words[3:]
    else:
        (module, function), arguments = OURS, words[1:]
    program = UNTIL_EMPTY.format(module=module, function=function)
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, timeout=SECONDS_TO_WORK, check=False)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {line}")


def stay_and_stop(line: str) -> None:
    """Start a command that stays, let it run for a moment, and insist that SIGTERM ends it well."""
    process = subprocess.Popen(["bash", "-c", f"exec {line}"], stderr=subprocess.PIPE, text=True)
    running = threading.Event()

    def follow() -> None:
        for logged in process.stderr or ():
            sys.stderr.write(logged)
            if RUNNING in logged:
                running.set()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        if not running.wait(SECONDS_TO_START):
            raise SystemExit(f"did not start: {line}")
        time.sleep(SECONDS_TO_RUN)
        process.send_signal(signal.SIGTERM)
        if process.wait(SECONDS_TO_STOP) != 0:
            raise SystemExit(f"exit code {process.returncode} after SIGTERM: {line}")
    finally:
        process.kill()
        process.wait()
        follower.join(5.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
