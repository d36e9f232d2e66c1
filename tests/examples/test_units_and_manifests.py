"""The systemd units and Kubernetes manifests: valid, and consistent with the commands."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from queue_over_sql.cli.app import build_app

EXAMPLE = Path(__file__).parents[2] / "examples" / "deployment"
UNITS = sorted((EXAMPLE / "systemd").glob("*.service"))
MANIFESTS = sorted((EXAMPLE / "kubernetes").glob("*.yaml"))
KUBERNETES = "1.34"
INSTALLED = "/srv/queue-over-sql/venv/bin/queue-over-sql"


def documents() -> list[dict[str, Any]]:
    """All objects of the manifests."""
    return [each for file in MANIFESTS for each in yaml.safe_load_all(file.read_text())]


def deployments() -> list[dict[str, Any]]:
    """The only container of each deployment, with its pod as `pod`."""
    pods = [each["spec"]["template"]["spec"] for each in documents() if each["kind"] != "Secret"]
    return [{**container, "pod": pod} for pod in pods for container in pod["containers"]]


def options_of(arguments: list[str]) -> set[str]:
    """The options that a command line names."""
    return {argument for argument in arguments if argument.startswith("--")}


def known_options(command: str) -> set[str]:
    """Those that a command has."""
    found = getattr(get_command(build_app()), "commands", {})[command]
    return {option for parameter in found.params for option in parameter.opts}


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """Its own analyser reads them; the program is one that this machine has."""
    assert 2 == len(UNITS)
    analyser = shutil.which("systemd-analyze")
    if analyser is None:
        pytest.skip("systemd-analyze is not installed: Debian has it in the package systemd")
    for unit in UNITS:
        text = unit.read_text().replace(INSTALLED, "/bin/true")
        (tmp_path / unit.name).write_text(text)
        done = subprocess.run(
            [analyser, "verify", "--man=no", str(tmp_path / unit.name)],
            capture_output=True,
            text=True,
            check=False,
        )
        said = [line for line in done.stderr.splitlines() if unit.name.partition("@")[0] in line]
        assert 0 == done.returncode, done.stderr
        assert [] == said, done.stderr


def test_units_run_commands_that_there_are() -> None:
    """Options and arguments are those of the command line; what stops it fits its signals."""
    for unit in UNITS:
        read = configparser.RawConfigParser(strict=False)
        # Names of systemd are read as they are written.
        read.optionxform = str  # type: ignore[assignment,method-assign]
        read.read_string(unit.read_text())
        service = read["Service"]
        program, command, *arguments = service["ExecStart"].split()
        assert INSTALLED == program
        assert options_of(arguments) <= known_options(command), unit.name
        assert "notify" == service["Type"]
        assert "main" == service["NotifyAccess"]
        assert "SIGTERM" == service["KillSignal"]
        assert "yes" == service["NoNewPrivileges"]
        assert "yes" == service["DynamicUser"]
        # A supervisor tells its processes: they must not hear of it twice.
        assert ("--processes" in arguments) == (service["KillMode"] == "mixed"), unit.name


def test_manifests_fit_the_schema_of_kubernetes() -> None:
    """Each object, and no field that its kind does not have."""
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed: it is of extra test"
    )
    kinds = [document["kind"] for document in documents()]
    assert ["Deployment", "Deployment", "Secret"] == sorted(kinds)
    for document in documents():
        assert validator.validate(document, KUBERNETES, strict=True)
    broken = {**documents()[0], "unknown": 1}
    with pytest.raises(validator.ValidationError):
        validator.validate(broken, KUBERNETES, strict=True)


def test_pods_are_probed_where_they_answer() -> None:
    """Live without the database, ready with it, and time enough to drain."""
    assert 2 == len(deployments())
    for container in deployments():
        command, *arguments = container["args"]
        assert options_of(arguments) <= known_options(command), command
        [port] = container["ports"]
        assert f"0.0.0.0:{port['containerPort']}" == arguments[arguments.index("--http") + 1]
        asked = {
            name: container[name]["httpGet"]["path"]
            for name in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        assert ["/livez", "/livez", "/readyz"] == list(asked.values()), command
        for name in asked:
            assert port["name"] == container[name]["httpGet"]["port"]
            # A supervisor takes up to four seconds to hear of its processes.
            assert container[name]["timeoutSeconds"] > 4
        assert container["pod"]["terminationGracePeriodSeconds"] >= 30
        assert {"requests", "limits"} == set(container["resources"])


def test_the_url_is_a_secret() -> None:
    """No password stands in a deployment or a unit."""
    [secret] = [each for each in documents() if each["kind"] == "Secret"]
    for container in deployments():
        [variable] = container["env"]
        reference = variable["valueFrom"]["secretKeyRef"]
        assert "QUEUE_OVER_SQL_URL" == variable["name"]
        assert secret["metadata"]["name"] == reference["name"]
        assert reference["key"] in secret["stringData"]
    for unit in UNITS:
        assert not re.search(r"\w+://\S+@", unit.read_text())
        assert "EnvironmentFile=/etc/" in unit.read_text()
