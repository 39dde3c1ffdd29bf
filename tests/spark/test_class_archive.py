from __future__ import annotations

import os
from pathlib import Path

import pytest

from distributary.spark.java import Java, archive_options

JAVA = Java(Path("java"), "17.0.1")
WRITTEN = b"\xa8\xab\x0b\xf0" + bytes(100)
HALF_WRITTEN = bytes(100)


@pytest.fixture
def jars(tmp_path: Path) -> list[Path]:
    jar = tmp_path / "one.jar"
    jar.write_bytes(b"one")
    return [jar]


def value_of(options: list[str], name: str) -> Path:
    (option,) = options
    assert option.startswith(f"-XX:{name}=")
    return Path(option.partition("=")[2])


def test_first_session_writes_and_later_ones_use(tmp_path: Path, jars: list[Path]) -> None:
    part = value_of(
        archive_options(JAVA, jars, train=True, folder=tmp_path), "ArchiveClassesAtExit"
    )
    part.write_bytes(WRITTEN)
    used = value_of(archive_options(JAVA, jars, train=True, folder=tmp_path), "SharedArchiveFile")
    assert used.read_bytes() == WRITTEN
    assert not part.exists()


def test_only_one_session_at_a_time_writes(tmp_path: Path, jars: list[Path]) -> None:
    assert archive_options(JAVA, jars, train=True, folder=tmp_path)
    assert archive_options(JAVA, jars, train=True, folder=tmp_path) == []


def test_long_sessions_never_write(tmp_path: Path, jars: list[Path]) -> None:
    assert archive_options(JAVA, jars, train=False, folder=tmp_path) == []


def test_half_an_archive_is_not_used_and_is_written_again(tmp_path: Path, jars: list[Path]) -> None:
    part = value_of(
        archive_options(JAVA, jars, train=True, folder=tmp_path), "ArchiveClassesAtExit"
    )
    part.write_bytes(HALF_WRITTEN)
    assert archive_options(JAVA, jars, train=True, folder=tmp_path) == []
    (claim,) = tmp_path.glob("*.claim")
    os.utime(claim, (0, 0))
    assert value_of(
        archive_options(JAVA, jars, train=True, folder=tmp_path), "ArchiveClassesAtExit"
    )
    assert not part.exists()


def test_another_java_or_another_file_needs_another_archive(
    tmp_path: Path, jars: list[Path]
) -> None:
    first = archive_options(JAVA, jars, train=True, folder=tmp_path)
    other_java = Java(Path("java"), "21.0.1")
    assert archive_options(other_java, jars, train=True, folder=tmp_path) != first
    os.utime(jars[0], (1, 1))
    assert archive_options(JAVA, jars, train=True, folder=tmp_path) != first


def test_old_archives_are_dropped(tmp_path: Path, jars: list[Path]) -> None:
    for age, name in enumerate(["new.jsa", "old.jsa", "of-another.part"]):
        archive = tmp_path / name
        archive.write_bytes(WRITTEN)
        os.utime(archive, (1000 - age, 1000 - age))
    part = value_of(
        archive_options(JAVA, jars, train=True, folder=tmp_path), "ArchiveClassesAtExit"
    )
    part.write_bytes(WRITTEN)
    used = value_of(archive_options(JAVA, jars, train=True, folder=tmp_path), "SharedArchiveFile")
    left = {p.name for p in tmp_path.iterdir() if p.suffix in {".jsa", ".part"}}
    assert left == {used.name, "new.jsa"}


def test_only_speed_is_lost_where_the_cache_cannot_be_written(
    tmp_path: Path, jars: list[Path]
) -> None:
    tmp_path.joinpath("file").write_text("")
    assert archive_options(JAVA, jars, train=True, folder=tmp_path / "file" / "x") == []
