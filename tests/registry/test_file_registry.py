"""What only a registry in a folder can get wrong: files, other processes, damage."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode, InvalidSchemaError, RegistryUnavailableError
from distributary.model.names import printable, subject_folder
from distributary.registry import folder as files
from distributary.registry.folder import FileRegistry
from distributary.store.base import at

PROTO3 = 'syntax = "proto3";'
V1 = PROTO3 + "\nmessage Chess {\n  string player = 1; // ♟\n}\n"
V2 = PROTO3 + "\nmessage Chess {\n  string player = 1;\n  int32 rating = 2;\n}\n"


def message(number: int) -> str:
    return PROTO3 + f"message M{number} {{ string a = 1; }}"


def unavailable(root: Path, schema_id: int = 1) -> RegistryUnavailableError:
    with pytest.raises(RegistryUnavailableError) as caught:
        FileRegistry(root).by_id(schema_id)
    assert caught.value.code is ErrorCode.REGISTRY_UNAVAILABLE
    assert caught.value.retryable
    assert caught.value.where and caught.value.evidence and caught.value.next_step
    return caught.value


def test_the_folder_is_for_people_and_for_git(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    registry.register("chess-value", V1)
    registry.register("Chess/Archive", V1)
    registry.delete_version("chess-value", 1)
    registry.set_compatibility(None, "FULL")
    registry.set_compatibility("chess-value", "NONE")
    schema = tmp_path / "ids" / "00000001.json"
    assert "string player = 1; // ♟" in schema.read_text(encoding="utf-8").splitlines()[7]
    assert json.loads(schema.read_bytes())["schema"] == V1.split("\n")
    chess = tmp_path / "subjects" / "chess-value"
    assert sorted(p.name for p in chess.iterdir()) == ["1.deleted", "1.json", "config.json"]
    assert json.loads((chess / "1.json").read_bytes()) == {
        "subject": "chess-value",
        "version": 1,
        "id": 1,
    }
    assert json.loads((tmp_path / "config.json").read_bytes()) == {"compatibility": "FULL"}
    other = next(p for p in (tmp_path / "subjects").iterdir() if p != chess)
    assert other.name.startswith("chess_archive~")
    ignored = (tmp_path / ".gitignore").read_text(encoding="utf-8").split()
    assert {p.name for p in tmp_path.glob(".*")} - {".gitignore"} <= set(ignored)


def test_nothing_is_left_of_writing(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    registry.register("chess-value", V1)
    registry.register("chess-value", V2)
    assert not list(tmp_path.rglob(".new-*"))


def test_a_missing_folder_is_unavailable_until_something_is_registered(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "schemas"
    registry = FileRegistry(root)
    unavailable(root)
    for ask in (registry.subjects, lambda: registry.latest("a"), lambda: registry.versions("a")):
        with pytest.raises(RegistryUnavailableError):
            ask()
    assert not root.exists()
    schema_id = registry.register("chess-value", V1)
    assert FileRegistry(root).by_id(schema_id).message == "Chess"


def test_a_path_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    root = tmp_path / "schemas"
    root.write_bytes(b"")
    unavailable(root)
    with pytest.raises(RegistryUnavailableError):
        FileRegistry(root).register("chess-value", V1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'<<<<<<< ours\n{"id": 1}\n=======\n',
        b'{"id": 2, "format": "protobuf", "references": [], "schema": [""]}',
        b'{"id": 1, "format": "cobol", "references": [], "schema": [""]}',
        b'{"id": 1, "format": "protobuf", "references": [{}], "schema": [""]}',
        b'{"id": 1, "format": "protobuf", "references": [], "schema": "text"}',
        b'{"id": 1, "format": "protobuf", "references": [], "schema": [7]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_damaged_schema_stops_the_reader_instead_of_blaming_records(
    tmp_path: Path, content: bytes
) -> None:
    FileRegistry(tmp_path).register("chess-value", V1)
    (tmp_path / "ids" / "00000001.json").write_bytes(content)
    unavailable(tmp_path)
    with pytest.raises(RegistryUnavailableError):
        FileRegistry(tmp_path).register("go-value", V2)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"{}",
        b'{"subject": "other", "version": 1, "id": 1}',
        b'{"subject": "chess-value", "version": 2, "id": 1}',
        b'{"subject": "chess-value", "version": 1, "id": "1"}',
    ],
)
def test_a_damaged_version_stops_the_reader(tmp_path: Path, content: bytes) -> None:
    FileRegistry(tmp_path).register("chess-value", V1)
    (tmp_path / "subjects" / "chess-value" / "1.json").write_bytes(content)
    unavailable(tmp_path)


def test_a_damaged_level_stops_registration(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    registry.register("chess-value", V1)
    (tmp_path / "config.json").write_bytes(b'{"compatibility": "SIDEWAYS"}')
    with pytest.raises(RegistryUnavailableError):
        registry.register("chess-value", V2)


def test_other_files_in_the_folder_do_not_matter(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    registry.register("chess-value", V1)
    (tmp_path / "README.md").write_bytes(b"")
    (tmp_path / "subjects" / ".DS_Store").write_bytes(b"")
    (tmp_path / "subjects" / "empty").mkdir()
    (tmp_path / "subjects" / "chess-value" / "notes.txt").write_bytes(b"")
    (tmp_path / "subjects" / "chess-value" / "٣.json").write_bytes(b"")
    (tmp_path / "ids" / "draft.json").write_bytes(b"")
    fresh = FileRegistry(tmp_path)
    assert fresh.subjects() == ("chess-value",)
    assert fresh.register("chess-value", V2) == 2
    assert fresh.by_id(1).version_in("chess-value") == 1


def test_references_in_a_circle_made_by_hand_are_invalid(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    registry.register("a", PROTO3 + "message A {}")
    registry.register("b", PROTO3 + "message B {}")
    for number, (own, other) in enumerate([("a", "b"), ("b", "a")], 1):
        content = {
            "id": number,
            "format": "protobuf",
            "references": [{"name": f"{other}.proto", "subject": other, "version": 1}],
            "schema": [f'{PROTO3} import "{other}.proto"; message {own.upper()} {{}}'],
        }
        path = tmp_path / "ids" / f"{number:08d}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InvalidSchemaError):
        FileRegistry(tmp_path).by_id(1)


def test_a_gap_in_the_ids_is_not_filled(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    for number in range(3):
        registry.register(f"s{number}", message(number))
    (tmp_path / "ids" / "00000002.json").unlink()
    assert FileRegistry(tmp_path).register("new", message(9)) == 4


def test_an_id_whose_version_was_never_written_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = FileRegistry(tmp_path)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files._FileStore, "add_version", killed)
        with pytest.raises(KeyboardInterrupt):
            registry.register("chess-value", V1)
    fresh = FileRegistry(tmp_path)
    assert fresh.subjects() == ()
    assert fresh.by_id(1).subjects == ()
    assert fresh.register("chess-value", V1) == 1


def test_a_full_disk_is_unavailable_and_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = FileRegistry(tmp_path)
    registry.register("chess-value", V1)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RegistryUnavailableError):
            registry.register("chess-value", V2)
    assert not list(tmp_path.rglob(".new-*"))
    assert registry.versions("chess-value") == (1,)
    assert registry.register("chess-value", V2) == 2


def test_a_file_system_without_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    registry = FileRegistry(tmp_path)
    assert [registry.register("a", V1), registry.register("a", V2)] == [1, 2]
    assert FileRegistry(tmp_path).versions("a") == (1, 2)


def test_what_others_change_by_hand_is_seen_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = FileRegistry(tmp_path)
    schema_id = registry.register("chess-value", V1)
    assert len(registry.by_id(schema_id).subjects) == 1
    folder = tmp_path / "subjects" / "pulled-value"
    folder.mkdir()
    content = {"subject": "pulled-value", "version": 1, "id": schema_id}
    (folder / "1.json").write_text(json.dumps(content), encoding="utf-8")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    assert len(registry.by_id(schema_id).subjects) == 2


def _register(
    root: Path, worker: int, count: int, start: Barrier, out: multiprocessing.Queue[list[int]]
) -> None:
    registry = FileRegistry(root, durable=False)
    ids = []
    start.wait(timeout=120)
    for number in range(count):
        ids.append(registry.register(f"own-{worker}", message(worker * 1000 + number)))
        ids.append(registry.register("shared", message(number)))
    out.put(ids)


def test_processes_that_register_at_once_share_one_numbering(tmp_path: Path) -> None:
    root, workers, count = tmp_path / "schemas", 4, 15
    registry = FileRegistry(root, durable=False)
    registry.set_compatibility(None, "NONE")
    context = multiprocessing.get_context("spawn")
    out: multiprocessing.Queue[list[int]] = context.Queue()
    start = context.Barrier(workers)
    processes = [
        context.Process(target=_register, args=(root, worker, count, start, out))
        for worker in range(1, workers + 1)
    ]
    for process in processes:
        process.start()
    answers = [out.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(timeout=120)
        assert process.exitcode == 0
    own = [schema_id for ids in answers for schema_id in ids[::2]]
    assert len(set(own)) == workers * count
    assert len({tuple(ids[1::2]) for ids in answers}) == 1
    everything = {*own, *answers[0][1::2]}
    assert everything == set(range(1, workers * count + count + 1))
    assert registry.versions("shared") == tuple(range(1, count + 1))
    for worker in range(1, workers + 1):
        assert registry.versions(f"own-{worker}") == tuple(range(1, count + 1))
    assert len({registry.text(schema_id) for schema_id in everything}) == len(everything)


def _hold(root: Path, held: Event) -> None:
    with files._FileStore(at(root)).exclusive():
        held.set()
        time.sleep(3600)


def test_a_writer_that_is_killed_holds_nobody_up(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=_hold, args=(tmp_path, held), daemon=True)
    process.start()
    assert held.wait(timeout=120)
    process.kill()
    process.join(timeout=120)
    assert FileRegistry(tmp_path).register("chess-value", V1) == 1


@given(st.lists(st.text(max_size=120), unique=True, max_size=20))
def test_folder_names_are_safe_and_never_shared(names: list[str]) -> None:
    folders = [subject_folder(name) for name in names]
    assert len({folder.lower() for folder in folders}) == len(names)
    for folder in folders:
        assert folder.isascii() and "/" not in folder and "\\" not in folder
        assert not folder.startswith(".") and 0 < len(folder) <= 120


def test_a_plain_name_is_its_own_folder() -> None:
    assert subject_folder("chess-value") == "chess-value"
    assert subject_folder("a.b_c-1") == "a.b_c-1"


@given(st.text(max_size=400))
def test_printable_text_moves_no_cursor(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert text[:300] == shown[:300] or not text[:300].isprintable()
