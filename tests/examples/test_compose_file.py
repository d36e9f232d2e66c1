"""docker-compose.yml and its services: valid, closed to the network, matching the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from sqlalchemy import make_url
from typer.main import get_command

from queue_over_sql.testing.servers.container import RECIPES

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "deployment"
SERVICE_KEYS = {
    "build",
    "command",
    "depends_on",
    "entrypoint",
    "environment",
    "healthcheck",
    "image",
    "ports",
    "profiles",
    "restart",
    "stop_grace_period",
    "volumes",
}
DATABASES = {"postgresql", "mariadb", "mysql", "h2"}
DEPLOYMENT = {"worker-1", "worker-2", "reaper", "publisher"}


@cache
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def cli_commands() -> set[str]:
    from queue_over_sql.cli.app import build_app

    return set(getattr(get_command(build_app()), "commands", {}))


def test_the_image_has_every_package() -> None:
    """What the wheel is built from is copied, and is not ignored."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = (ROOT / "Dockerfile").read_text()
    admitted = (ROOT / ".dockerignore").read_text().splitlines()
    for package in {each.partition("/")[0] for each in packages}:
        assert f"COPY {package} ./{package}\n" in copied
        assert f"!{package}" in admitted


def test_the_image_is_pinned_by_hash() -> None:
    """It has all that the package needs there, in the versions of the tests, each with hashes."""
    pinned = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / "image-requirements.txt").read_text()):
        if not entry.startswith("#"):
            requirement, *hashes = entry.replace("\\\n", "").split()
            assert hashes, requirement
            assert all(each.startswith("--hash=sha256:") for each in hashes), requirement
            name, _, version = requirement.partition("==")
            pinned[canonicalize_name(name)] = Version(version)
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = {
        canonicalize_name(name): Version(version)
        for name, _, version in (line.partition("==") for line in lines if "==" in line)
    }
    assert {} == {name: v for name, v in pinned.items() if tested.get(name, v) != v}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["project"]["optional-dependencies"]
    needed = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    needed += [each for extra in ("postgresql", "mysql", "prometheus") for each in groups[extra]]
    for each in map(Requirement, needed):
        assert each.specifier.contains(pinned[canonicalize_name(each.name)]), str(each)


def test_has_every_database_and_the_deployment() -> None:
    """The file offers all four servers, two workers, a reaper and a publisher, and nothing else."""
    assert DATABASES | DEPLOYMENT == set(services())


def test_services_are_well_formed() -> None:
    """Each service has only known keys, something to run, a profile, and volumes that exist."""
    for name, service in services().items():
        named = {mount.split(":")[0] for mount in service.get("volumes", [])}

        assert set() == set(service) - SERVICE_KEYS, name
        assert service["image"], name
        assert service["profiles"], name
        assert named <= set(compose()["volumes"]), name
        assert set(service.get("depends_on", {})) <= set(services()), name


def test_databases_are_closed_and_checked() -> None:
    """A database is published on the loopback interface only, and others can wait for it."""
    for name in DATABASES:
        service = services()[name]

        assert all(port.startswith("127.0.0.1:${") for port in service["ports"]), name
        assert "CMD" == service["healthcheck"]["test"][0], name
        assert {"databases", name} <= set(service["profiles"])


def test_dependencies_are_started_by_the_same_profile() -> None:
    """Whoever asks for the deployment gets the database that it depends on."""
    for service in services().values():
        for needed, condition in service.get("depends_on", {}).items():
            assert set(service["profiles"]) <= set(services()[needed]["profiles"])
            assert {"condition": "service_healthy"} == condition
            assert "healthcheck" in services()[needed]


def test_deployed_commands_exist() -> None:
    """Each server runs a command that the command line has, and a worker that the example has."""
    for name in DEPLOYMENT - {"publisher"}:
        command, *arguments = services()[name]["command"]

        assert command in cli_commands(), name
        for target in arguments[:1] if command == "worker" else []:
            module, _, attribute = target.partition(":")
            script = (EXAMPLE / f"{module}.py").read_text()
            assert f"\n{attribute} = service.worker(" in script, name


def test_deployed_processes_are_asked_whether_they_are_ready() -> None:
    """Each answers where its own health check asks it."""
    for name in DEPLOYMENT - {"publisher"}:
        service = services()[name]
        command, asked = service["command"], service["healthcheck"]["test"]

        assert ["CMD", "queue-over-sql", "health", "--ready"] == asked[:4], name
        assert asked[-2:] == command[-2:], name


def test_the_publisher_exists() -> None:
    """The publisher's script is in the folder that the image works in."""
    publisher = services()["publisher"]
    dockerfile = (ROOT / "Dockerfile").read_text()

    assert ["python"] == publisher["entrypoint"]
    assert (EXAMPLE / publisher["command"][0]).is_file()
    assert f"WORKDIR /app/{EXAMPLE.relative_to(ROOT)}" in dockerfile


def test_the_deployment_reaches_its_database() -> None:
    """Host, account and database of the deployment's URL are those of the PostgreSQL service."""
    server = services()["postgresql"]["environment"]
    for name in DEPLOYMENT:
        url = make_url(services()[name]["environment"]["QUEUE_OVER_SQL_URL"])
        assert "postgresql" == url.host
        assert 5432 == url.port
        expected = (server["POSTGRES_USER"], server["POSTGRES_PASSWORD"], server["POSTGRES_DB"])
        assert expected == (url.username, url.password, url.database)


def test_the_images_are_those_of_the_tests() -> None:
    """Tests in containers and the compose file run the same versions of each server."""
    images = {engine: recipe.image for engine, recipe in RECIPES.items()}
    assert images == {engine: services()[engine]["image"] for engine in images}


def test_built_targets_and_copied_files_exist() -> None:
    """The Dockerfile has each target that is built, and what it copies is not ignored."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    targets = {service["build"]["target"] for service in services().values() if "build" in service}
    copied = {
        source
        for line in dockerfile.splitlines()
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    }

    assert {"app", "h2"} == targets
    assert all(f" AS {target}\n" in dockerfile for target in targets)
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)


def test_docker_compose_accepts_the_file() -> None:
    """Docker's own client finds nothing wrong, where it is installed; it needs no engine."""
    docker = shutil.which("docker")
    asked = None if docker is None else subprocess.run([docker, "compose", "version"], check=False)
    if docker is None or asked is None or asked.returncode != 0:
        pytest.skip("docker compose is not installed; the other tests here check the file")
    done = subprocess.run(
        [docker, "compose", "--profile", "*", "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode
    assert "" == done.stderr
