"""Help for every command, an up-to-date reference page, and a version."""

from __future__ import annotations

import resource
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from queue_over_sql import __version__
from queue_over_sql.cli.app import build_app
from tests.cli.command_line import ROOT, command, environment, run

REFERENCE = runpy.run_path(str(ROOT / "scripts" / "docs" / "cli.py"))

EXPECTED = [
    "create",
    "list",
    "pause",
    "resume",
    "purge",
    "drop",
    "adopt",
    "publish",
    "request",
    "consume",
    "peek",
    "search",
    "show",
    "why",
    "dead",
    "edit",
    "cancel",
    "requeue",
    "subscribe",
    "unsubscribe",
    "stats",
    "top",
    "groups",
    "consumers",
    "health",
    "metrics",
    "doctor",
    "sql",
    "worker",
    "reaper",
    "serve",
    "openapi",
    "demo",
    "archive export",
    "archive prune",
    "archive remove",
    "group pause",
    "group resume",
    "group unblock",
    "group configure",
    "migrate",
    "schedule add",
    "schedule list",
    "schedule show",
    "schedule pause",
    "schedule resume",
    "schedule run",
    "schedule remove",
    "topic create",
    "topic list",
    "topic show",
    "topic publish",
    "topic drop",
    "consumer release",
    "consumer drop",
    "sql-api install",
    "sql-api uninstall",
    "sql-api print",
    "roles print",
    "roles install",
    "token add",
    "token list",
    "token remove",
    "spark load",
    "spark process",
    "spark workers",
    "spark export-history",
    "spark report",
]


def _commands() -> dict[str, Any]:
    root: Any = typer.main.get_command(build_app())
    return {"": root, **dict(REFERENCE["all_commands"](root))}


def test_the_commands_are_those_that_are_promised() -> None:
    """No command is missing, and none has come without being listed here."""
    assert EXPECTED == list(_commands())[1:]


def test_every_command_argument_and_option_has_help() -> None:
    """A command, argument or option without a help text cannot be merged."""
    without = [
        f"{name} {part.name}".strip()
        for name, command in _commands().items()
        for part in (command, *command.params)
        if not (getattr(part, "help", None) or "").strip()
    ]
    assert [] == without


def test_every_command_takes_the_options_for_the_database() -> None:
    """--url, --schema, --table-prefix and --json work after the name of every command, too."""
    shared = {"--url", "--schema", "--table-prefix", "--json"}
    commands = _commands()
    missing = {
        name: shared - {option for part in commands[name].params for option in part.opts}
        for name in EXPECTED
    }
    assert {} == {name: options for name, options in missing.items() if options}


def test_the_reference_page_is_current() -> None:
    """docs/cli.md is what the commands say of themselves today."""
    current: str = REFERENCE["render"]()
    assert current == (ROOT / "docs" / "cli.md").read_text(), "run: python scripts/docs/cli.py"


def test_help_needs_no_database() -> None:
    """Help of a command is shown without a URL, and names its own options."""
    ended = run("publish", "--help")
    assert 0 == ended.exit_code
    assert "--on-conflict" in ended.out


def test_a_pair_of_options_states_its_default() -> None:
    """On the reference page, and in the help on the terminal."""
    pairs = {
        REFERENCE["_row"](
            part
        ): f"Default: `{(part.opts if part.default else part.secondary_opts)[0]}`"
        for command in _commands().values()
        for part in command.params
        if part.secondary_opts
    }
    assert pairs
    assert [] == [row for row, default in pairs.items() if default not in row]
    assert "[default: kill]" in " ".join(run("demo", "--help").out.split())


LOADED = """
import sys
from queue_over_sql.cli import main
try:
    main()
finally:
    sys.stderr.write(" ".join({name.partition(".")[0] for name in sys.modules}))
"""


def test_help_and_completion_load_no_database() -> None:
    """SQLAlchemy takes longer to import than all else that help needs."""
    completion = {
        "_QUEUE_OVER_SQL_COMPLETE": "complete_bash",
        "COMP_WORDS": "queue-over-sql reap",
        "COMP_CWORD": "1",
    }
    never = {"sqlalchemy", "apscheduler", "pyspark", "pyarrow"}
    for arguments, variables, unwanted, said in (
        (["--help"], {}, never, "Exit codes"),
        (["publish", "--help"], {}, never, "--on-conflict"),
        (["--version"], {}, {*never, "rich"}, __version__),
        ([], completion, {*never, "rich"}, "reaper"),
    ):
        ended = subprocess.run(
            [sys.executable, "-c", LOADED, *arguments],
            env=environment(**variables),
            capture_output=True,
            text=True,
            check=False,
        )
        assert said in ended.stdout, ended.stderr
        assert set() == unwanted & set(ended.stderr.split()), arguments


@pytest.mark.timing
def test_help_takes_less_than_a_third_of_a_second(tmp_path: Path) -> None:
    """Of processor time, once Python has compiled the modules."""
    variables = environment(PYTHONPYCACHEPREFIX=str(tmp_path))
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    took = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command("--help"), env=variables, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert 0.3 > min(took)


def test_version() -> None:
    """--version prints the version of the package."""
    assert f"queue-over-sql {__version__}\n" == run("--version").out


def test_an_unknown_command_is_wrong_usage() -> None:
    """Exit code 2, nothing on standard output."""
    ended = run("nonsense")
    assert 2 == ended.exit_code
    assert "" == ended.out
