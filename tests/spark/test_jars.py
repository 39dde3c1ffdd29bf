from __future__ import annotations

import hashlib
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest

from distributary.cli.doctor import versions
from distributary.errors import ErrorCode, SetupError
from distributary.spark import jars as connectors
from distributary.spark.jars import SETTINGS, ensure_connectors, lock_key
from distributary.spark.versions import VERSIONS, has_delta, minor_of

JARS = {"one-1.0.jar": b"one", "two-2.0.jar": b"two"}

OWN = minor_of(version("pyspark"))

# stands for `java ... org.apache.ivy.Main`: writes the files where Ivy was told to put them
FAKE_IVY = """#!{python}
import pathlib, sys, time
arguments = dict(zip(sys.argv, sys.argv[1:]))
with open({calls!r}, "a") as calls:
    calls.write(arguments["-settings"] + "\\n")
time.sleep({seconds})
print("downloading https://user:CANARY@mirror.example/x/one-1.0.jar ...")
print("........ (3kB)")
jars = pathlib.Path(arguments["-retrieve"]).parent
jars.mkdir(parents=True)
for name, content in {jars!r}.items():
    (jars / name).write_bytes(content)
sys.exit({code})
"""

Install = Callable[..., None]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def ivy(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replaces the lock by a small one and Java by a script."""
    lock = tmp_path / "jvm" / OWN
    lock.mkdir(parents=True)
    lock.joinpath("ivy.xml").write_text("<ivy-module/>")
    lock.joinpath("SHA256SUMS").write_text(
        "".join(f"{hashlib.sha256(body).hexdigest()}  {name}\n" for name, body in JARS.items())
    )
    monkeypatch.setattr(connectors, "JVM", lock.parent)
    home = tmp_path / "java"
    home.joinpath("bin").mkdir(parents=True)
    home.joinpath("release").write_text('JAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DISTRIBUTARY_JARS", raising=False)
    monkeypatch.delenv("DISTRIBUTARY_IVY_SETTINGS", raising=False)

    def install(*, jars: dict[str, bytes] = JARS, code: int = 0, seconds: float = 0) -> None:
        program = home / "bin" / "java"
        program.write_text(
            FAKE_IVY.format(
                python=sys.executable, calls=str(calls), jars=jars, code=code, seconds=seconds
            )
        )
        program.chmod(0o755)

    install()
    return install


def refused(cache: Path) -> SetupError:
    with pytest.raises(SetupError) as caught:
        ensure_connectors(cache=cache)
    assert caught.value.code is ErrorCode.CONNECTORS_MISSING
    assert caught.value.next_step
    return caught.value


def left_in(cache: Path) -> list[str]:
    return [p.name for p in (cache / "connectors").iterdir() if p.suffix != ".lock"]


def test_files_are_fetched_once(ivy: Install, cache: Path, calls: Path) -> None:
    said: list[str] = []
    first = ensure_connectors(said.append, cache=cache)
    assert [jar.name for jar in first] == sorted(JARS)
    assert all(jar.is_file() for jar in first)
    assert any("one-1.0.jar (1 of 2)" in line for line in said)
    said.clear()
    assert ensure_connectors(said.append, cache=cache) == first
    assert len(calls.read_text().splitlines()) == 1
    assert not said


def test_a_filled_cache_needs_no_java(
    ivy: Install, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure_connectors(cache=cache)
    monkeypatch.setenv("JAVA_HOME", "nowhere")
    assert ensure_connectors(cache=cache) == first


def test_two_at_once_fetch_once(ivy: Install, cache: Path, calls: Path) -> None:
    ivy(seconds=0.3)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: ensure_connectors(cache=cache), range(3)))
    assert answers[0] == answers[1] == answers[2]
    assert len(calls.read_text().splitlines()) == 1


def test_a_failed_fetch_leaves_nothing_and_shows_no_credentials(ivy: Install, cache: Path) -> None:
    ivy(code=1)
    error = refused(cache)
    assert "one-1.0.jar" in error.evidence
    assert "CANARY" not in str(error)
    assert left_in(cache) == []
    ivy()
    assert len(ensure_connectors(cache=cache)) == 2


@pytest.mark.parametrize(
    "jars", [{**JARS, "two-2.0.jar": b"other"}, {"one-1.0.jar": b"one"}], ids=["other", "missing"]
)
def test_files_that_the_lock_does_not_name_are_refused(
    ivy: Install, cache: Path, jars: dict[str, bytes]
) -> None:
    ivy(jars=jars)
    refused(cache)
    assert left_in(cache) == []


def test_what_a_killed_fetch_left_is_not_used(ivy: Install, cache: Path) -> None:
    half = cache / "connectors" / f"{lock_key()}.part-dead" / "jars"
    half.mkdir(parents=True)
    half.joinpath("one-1.0.jar").write_bytes(b"on")
    assert len(ensure_connectors(cache=cache)) == 2
    assert left_in(cache) == [lock_key()]


def test_a_deleted_file_is_fetched_again(ivy: Install, cache: Path) -> None:
    first = ensure_connectors(cache=cache)
    first[0].unlink()
    assert ensure_connectors(cache=cache)[0].read_bytes() == b"one"


def test_a_new_lock_is_a_new_folder(ivy: Install, cache: Path) -> None:
    first = ensure_connectors(cache=cache)
    connectors.JVM.joinpath(OWN, "ivy.xml").write_text("<ivy-module version='2.0'/>")
    assert ensure_connectors(cache=cache)[0].parent != first[0].parent


def test_a_cache_that_cannot_be_written(ivy: Install, tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("")
    refused(tmp_path / "file")


def test_settings_of_the_user_name_the_mirror(
    ivy: Install, tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / ".ivy2" / "ivysettings.xml"
    ensure_connectors(cache=tmp_path / "a")
    own.parent.mkdir()
    own.write_text("<ivysettings/>")
    ensure_connectors(cache=tmp_path / "b")
    monkeypatch.setenv("DISTRIBUTARY_IVY_SETTINGS", str(tmp_path / "named.xml"))
    ensure_connectors(cache=tmp_path / "c")
    expected = [SETTINGS, own, tmp_path / "named.xml"]
    assert calls.read_text().splitlines() == [str(path) for path in expected]


def test_given_files_are_used_as_they_are(
    ivy: Install, cache: Path, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    for name in ("b.jar", "a.jar", "notes.txt"):
        folder.joinpath(name).write_text("")
    monkeypatch.setenv("DISTRIBUTARY_JARS", str(folder))
    assert [jar.name for jar in ensure_connectors(cache=cache)] == ["a.jar", "b.jar"]
    monkeypatch.setenv("DISTRIBUTARY_JARS", f"{folder}/b.jar, {folder}/a.jar")
    assert [jar.name for jar in ensure_connectors(cache=cache)] == ["b.jar", "a.jar"]
    assert not calls.exists()


@pytest.mark.parametrize("value", ["gone.jar", "empty", ","])
def test_given_files_must_exist(
    ivy: Install, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    tmp_path.joinpath("empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTRIBUTARY_JARS", value)
    refused(cache)


@pytest.mark.parametrize("minor", VERSIONS)
def test_both_halves_of_each_lock_name_the_same_files(minor: str) -> None:
    lock = ElementTree.parse(connectors.JVM / minor / "ivy.xml")
    named = {f"{d.get('name')}-{d.get('rev')}.jar" for d in lock.iter("dependency")}
    sums = (connectors.JVM / minor / "SHA256SUMS").read_text().splitlines()
    assert named == {line.split()[1] for line in sums}
    # what needs Delta's library is refused where there is none
    assert any(name.startswith(f"delta-spark_{minor}_") for name in named) is has_delta(minor)


def test_the_lock_of_the_default_spark_has_all_connectors_in_its_very_version() -> None:
    names = connectors._lock().sums
    for connector in ("spark-sql-kafka-0-10_2.13", "spark-avro_2.13"):
        assert f"{connector}-{version('pyspark')}.jar" in names


def test_each_spark_has_a_lock_and_a_cache_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = set()
    for minor in VERSIONS:
        home = tmp_path / minor
        home.joinpath("jars").mkdir(parents=True)
        home.joinpath("jars", f"spark-core_2.13-{minor}.7-amzn-0.jar").touch()
        monkeypatch.setenv("SPARK_HOME", str(home))
        assert connectors._lock().folder == connectors.JVM / minor
        keys.add(lock_key())
    assert len(keys) == len(VERSIONS)


def test_versions_name_every_part() -> None:
    found = versions()
    assert found["Delta"] == "4.4.0"
    assert found["Spark"] == version("pyspark")
    assert "missing" not in {found[name] for name in ("distributary", "Python", "deltalake")}
