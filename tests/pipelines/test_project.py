"""Spec files, what an update took for granted, and what its end means; without Spark."""

from __future__ import annotations

import importlib.util
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from ruamel.yaml import YAML

from distributary.errors import (
    ConfigError,
    DistributaryError,
    ErrorCode,
    RegistryUnavailableError,
    SetupError,
)
from distributary.pipelines import known_types as assumed
from distributary.pipelines.known_types import known, settings
from distributary.pipelines.update import (
    Project,
    failure,
    find_project,
    main,
    require_extra,
    server_conf,
    update,
)
from distributary_lab.simulate.game_records import GamesPlan
from tests.pipelines.games import Games

SPEC = "name: games\nstorage: kept\nconfiguration: {spark.a: 'b'}\n"


def project(folder: Path, text: str = SPEC) -> Project:
    (folder / "spark-pipeline.yml").write_text(text)
    return find_project(folder)


def test_a_folder_and_its_file_are_the_same_project(tmp_path: Path) -> None:
    found = project(tmp_path)
    assert found == find_project(tmp_path / "spark-pipeline.yml")
    assert (found.name, found.folder) == ("games", tmp_path)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("name: [", ErrorCode.CONFIG_SYNTAX),
        ("", ErrorCode.CONFIG_INVALID),
        ("- a", ErrorCode.CONFIG_INVALID),
        ("name: games", ErrorCode.CONFIG_INVALID),
        ("name: 7\nstorage: kept", ErrorCode.CONFIG_INVALID),
        ("name: a\nstorage: kept\nconfiguration: {x: 1}", ErrorCode.CONFIG_INVALID),
        ("name: a\nstorage: kept\nconfiguration: 1", ErrorCode.CONFIG_INVALID),
        ("name: \x00", ErrorCode.CONFIG_SYNTAX),
    ],
)
def test_a_spec_file_that_is_wrong_is_refused(tmp_path: Path, text: str, code: ErrorCode) -> None:
    with pytest.raises(ConfigError) as raised:
        project(tmp_path, text)
    assert raised.value.code is code


def test_a_folder_without_a_spec_file_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        find_project(tmp_path)
    assert raised.value.code is ErrorCode.NOT_FOUND


def test_a_folder_with_two_spec_files_is_none_either(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yaml").write_text(SPEC)
    with pytest.raises(ConfigError):
        project(tmp_path)


@pytest.mark.parametrize(
    ("storage", "whole"),
    [("kept", "{folder}/kept"), ("s3://b/kept", "s3://b/kept"), ("file:///x", "file:///x")],
)
def test_storage_is_a_whole_address(tmp_path: Path, storage: str, whole: str) -> None:
    found = project(tmp_path, f"name: a\nstorage: {storage}")
    expected = whole.format(folder=tmp_path.resolve().as_uri())
    assert found.effective({})["storage"] == expected


def test_the_copy_of_a_spec_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    found = project(tmp_path)
    left = tmp_path / ".spark-pipeline.update-1.yml"
    left.touch()
    with found.written(found.effective({"spark.x": "1"})) as copy:
        assert not left.exists()
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert YAML(typ="safe").load(copy)["configuration"] == {"spark.x": "1"}
    assert not copy.exists()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError) as raised:
        require_extra()
    assert raised.value.code is ErrorCode.EXTRA_MISSING


def test_a_server_listens_on_loopback_whatever_the_spec_says(tmp_path: Path) -> None:
    text = "name: a\nstorage: k\nconfiguration: {spark.connect.grpc.binding.address: 0.0.0.0}"
    conf = server_conf(project(tmp_path, text))
    assert conf["spark.connect.grpc.binding.address"] == "127.0.0.1"
    assert conf["spark.connect.grpc.binding.port"] == "0"


def book_of(games: Games, monkeypatch: pytest.MonkeyPatch) -> Path:
    book = games.folder / "book"
    monkeypatch.setenv(assumed.VARIABLE, str(book))
    assumed.assume(games.file, known(settings(games.file)).shape())
    return book


@pytest.fixture
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Games:
    monkeypatch.chdir(tmp_path)
    found = Games(tmp_path)
    found.send(GamesPlan(games=1, versions=1, records=1))
    return found


def test_a_failure_is_growth_only_if_the_registry_says_so(
    games: Games, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = book_of(games, monkeypatch)
    said = ["Traceback (most recent call last):", '  File "x"', "boom.Failed: no", "a plan"]
    before = failure(said, book, project="p")
    assert (before.code, before.evidence) == (ErrorCode.SPARK_FAILED, "boom.Failed: no")
    games.send(GamesPlan(games=2, versions=1, start_version=2, records=1))
    after = failure(said, book, project="p")
    assert (after.code, after.exit_code) == (ErrorCode.SCHEMA_GREW, 75)
    first, second = GamesPlan(games=2).names
    assert f"col_{first}_1" in after.evidence and f"+ type {second}" in after.evidence


def test_nothing_was_taken_for_granted(tmp_path: Path) -> None:
    assert failure([], tmp_path / "none", project="p").code is ErrorCode.SPARK_FAILED


def test_a_registry_that_is_away_is_no_growth(
    games: Games, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = book_of(games, monkeypatch)
    (games.folder / "schemas").rename(games.folder / "away")
    with pytest.raises(RegistryUnavailableError):
        failure([], book, project="p")


def test_an_error_of_the_definitions_is_told_as_it_is(tmp_path: Path) -> None:
    error = ConfigError("no such type", where="type 'x'", next_step="take another")
    said = f"distributary.errors.ConfigError: {error}".splitlines()
    found = failure(["Traceback (most recent call last):", *said], tmp_path / "b", project="p")
    assert (found.code, found.exit_code) == (ErrorCode.CONFIG_INVALID, 2)
    assert (found.where, found.next_step) == ("type 'x'", "take another")


REGISTERING = "2026-01-01 00:00:00: Registering graph elements..."
STARTING = "2026-01-01 00:00:01: Starting run..."
RAISED = ["Traceback (most recent call last):", '  File "x"', "NameError: no such name"]
LOST = [*RAISED[:2], "pyspark.errors.exceptions.connect.SparkConnectGrpcException: gone"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([REGISTERING, *RAISED], 2),
        ([REGISTERING, STARTING, *RAISED], 1),
        ([REGISTERING, *LOST], 1),
        (RAISED, 1),
    ],
)
def test_a_definition_that_fails_is_not_run_again(
    tmp_path: Path, said: list[str], code: int
) -> None:
    found = failure(said, tmp_path / "none", project="p")
    assert found.exit_code == code
    assert found.evidence == said[-1]


def test_a_process_tells_its_error_as_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert '"NOT_FOUND"' in capsys.readouterr().out


def test_updates_follow_each_other_on_one_server_until_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, servers, books, paused = [0, 0, 1], list[Path](), list[Path](), list[float]()

    @contextmanager
    def serving(
        project: Project, *, master: str, log: Path
    ) -> Iterator[tuple[str, dict[str, str]]]:
        servers.append(log)
        yield "sc://here", {}

    def client(
        project: Project, address: str, _: object, book: Path, verb: str
    ) -> tuple[int, list[str]]:
        assert (address, verb) == ("sc://here", "run")
        books.append(book)
        return ends.pop(0), ["ValueError: it broke"]

    module = "distributary.pipelines.update"
    monkeypatch.setattr(f"{module}.require_extra", lambda: None)
    monkeypatch.setattr(f"{module}.serving", serving)
    monkeypatch.setattr(f"{module}._client", client)
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(sleep=paused.append))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DistributaryError, match="the update failed"):
        update(project(tmp_path), master="local[1]", remote=None, pause=5.0)
    assert (len(servers), paused) == (1, [5.0, 5.0])
    # what one update assumed is not held against the next one
    assert len(set(books)) == 3
    ends[:] = [0]
    update(project(tmp_path), master="local[1]", remote=None)
    assert ends == []
