"""Run spin: it searches all runs of a model for one that breaks an assertion or never ends well."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MODELS: Final = ROOT / "model"
_SEARCH: Final = ["-E", "-m4000000"]
# What the search of all runs takes per state grows with the optimization of the compiler; a broken
# rule is found at once, and its compilation counts.
_COMPILE: Final = ["gcc", "-w", "-DVECTORSZ=2048"]
_SECONDS: Final = 240


@dataclasses.dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes:
        errors: how many runs break a promise; spin stops at the first.
        kind: what that run does: ``"assertion"`` or ``"cycle"``; None without one.
        states: how many states there are, or were looked at until the error.
    """

    errors: int
    kind: str | None
    states: int


def search(
    folder: Path, model: str, *switches: str, liveness: bool = False, quick: bool = False
) -> Search:
    """Search all runs of a model.

    Args:
        folder: where to write and to compile the search.
        model: the name of a file of ``model/``, without its ending.
        switches: what to define, such as ``NO_FENCE`` or ``FAULTS=2``.
        liveness: whether each run comes to its good end, with each process that could go on doing
            so; else whether an assertion fails.
        quick: whether an error is expected soon.
    """
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    assert not missing, f"install {' and '.join(missing)}: the model cannot be checked without"
    defined = [f"-D{switch}" for switch in switches]
    _run(folder, "spin", "-a", *defined, str(MODELS / f"{model}.pml"))
    level = "-O0" if quick else "-O2"
    options = ["-DNFAIR=4"] if liveness else ["-DNOCLAIM", "-DSAFETY"]
    _run(folder, *_COMPILE, level, *options, "-o", "search", "pan.c")
    found = _run(folder, "./search", *_SEARCH, *(["-a", "-f"] if liveness else []))
    errors = re.search(r"errors: (\d+)", found)
    states = re.search(r"(\d+(?:\.\d+e\+\d+)?) states, stored", found)
    assert errors, found
    assert states, found
    # It ran out of memory.
    assert int(errors[1]) or "Search not completed" not in found, found
    assert "max search depth too small" not in found, found
    kinds = {"assertion": "assertion violated", "cycle": "acceptance cycle"}
    kind = next((kind for kind, text in kinds.items() if f"pan:1: {text}" in found), None)
    return Search(int(errors[1]), kind, int(float(states[1])))


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    # The search itself ends with the number of errors that it found.
    assert command[0].startswith("./") or not done.returncode, done.stdout
    return done.stdout
