from __future__ import annotations

from pathlib import Path

import pytest

from distributary.errors import ErrorCode, SetupError
from distributary.spark import java


def java_home(folder: Path, *, release: str | None = None, script: str = "exit 1") -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return folder


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("1.8.0_392", 8), ("11.0.2", 11)],
)
def test_major_version(version: str, major: int) -> None:
    assert java.Java(Path("java"), version).major == major


def test_version_is_read_without_starting_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, release="17.0.1")))
    assert java.require_java() == java.Java(tmp_path / "bin" / "java", "17.0.1")


def test_java_is_asked_where_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """echo 'Picked up JAVA_TOOL_OPTIONS: -Dversion=1' >&2
echo 'openjdk version "21.0.3" 2024-04-16' >&2"""
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, script=script)))
    assert java.require_java().major == 21


def test_java_home_wins_over_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = java_home(tmp_path / "a", release="17")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "b", release="21")))
    assert java.require_java().major == 21
    monkeypatch.delenv("JAVA_HOME")
    assert java.require_java().major == 17


@pytest.mark.parametrize("case", ["no program", "only a stub", "too old", "broken home"])
def test_missing_java_says_how_to_get_it(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if case == "only a stub":
        monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "j")))
    elif case == "too old":
        monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "j", release="1.8.0_392")))
    elif case == "broken home":
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SetupError) as caught:
        java.require_java()
    assert caught.value.code is ErrorCode.JAVA_MISSING
    assert caught.value.next_step


def test_the_line_for_the_makefile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path, release="11")))
    assert java.main() == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
