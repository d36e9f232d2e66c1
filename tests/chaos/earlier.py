"""The code of an earlier release from the repository, for processes that run it."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.chaos.processes import REPOSITORY
from tests.contract.migrations.earlier_release import COMMIT


def earlier_code(folder: Path) -> Path:
    """Put the package as it was into a folder; the test is skipped where no clone has it."""
    command = ["git", "archive", COMMIT, "queue_over_sql"]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    if found.returncode:
        # A shallow clone may get it from where it came.
        fetch = ["git", "fetch", "--quiet", "--depth=1", "origin", COMMIT]
        subprocess.run(fetch, cwd=REPOSITORY, capture_output=True, check=False, timeout=60)
        found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(
            f"the commit {COMMIT[:12]} of the earlier release is not in this clone (shallow, or no "
            f"repository): {found.stderr.decode(errors='replace').strip()}"
        )
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
