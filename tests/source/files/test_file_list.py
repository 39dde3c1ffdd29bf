from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import CheckpointError, ErrorCode, FencedError, LakeUnavailableError
from distributary.source.files import file_list
from distributary.source.files.file_list import FileList, FoundFile

PATHS = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=20)
FILES = st.builds(FoundFile, PATHS, st.integers(1, 2**40), st.integers(0, 2**62))


def files(*paths: str, size: int = 1) -> list[FoundFile]:
    return [FoundFile(path, size, 7) for path in paths]


def paths(listed: FileList, start: int = 0) -> list[str]:
    return [file.path for file in listed.files(start, len(listed))]


@given(portions=st.lists(st.lists(FILES, max_size=5), max_size=5), cut=st.integers(0, 30))
def test_what_was_appended_is_there_after_a_restart(
    portions: list[list[FoundFile]], cut: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        before = FileList(Path(folder) / "files")
        for portion in portions:
            before.append(portion)
        after = FileList(Path(folder) / "files")
        expected = [file for portion in portions for file in portion]
        assert len(before) == len(after) == len(expected)
        assert all(after.knows(file) for file in expected)
        found = after.files(cut, cut + 3)
        assert found == before.files(cut, cut + 3)
        told = [(f.number, f.path, f.size, f.modified_ns) for f in found]
        wanted = list(enumerate(expected))[cut : cut + 3]
        assert told == [(n, f.path, f.size, f.modified_ns) for n, f in wanted]
        assert after.chain(len(expected)) == before.chain(len(expected))


def test_a_file_that_changed_is_another_one(tmp_path: Path) -> None:
    listed = FileList(tmp_path)
    listed.append(files("a"))
    assert listed.knows(FoundFile("a", 1, 7))
    assert not listed.knows(FoundFile("a", 2, 7))
    assert not listed.knows(FoundFile("a", 1, 8))


def test_fingerprints_tell_two_orders_apart(tmp_path: Path) -> None:
    one, other = FileList(tmp_path / "one"), FileList(tmp_path / "other")
    one.append(files("same", "a", "b", "c"))
    other.append(files("same", "b", "a", "c"))
    assert one.chain(0) == other.chain(0) == 0
    assert one.chain(1) == other.chain(1)
    assert all(one.chain(n) != other.chain(n) for n in (2, 3, 4))


def test_two_processes_cannot_both_append(tmp_path: Path) -> None:
    one, other = FileList(tmp_path), FileList(tmp_path)
    one.append(files("a"))
    with pytest.raises(FencedError):
        other.append(files("b"))
    assert paths(FileList(tmp_path)) == ["a"]


def test_small_segments_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_list, "_MANY_SEGMENTS", 5)
    monkeypatch.setattr(file_list, "_FILES_PER_SEGMENT", 4)
    listed = FileList(tmp_path)
    expected = [f"{number:02d}" for number in range(11)]
    for path in expected[:10]:
        listed.append(files(path))
    chain = listed.chain(10)
    listed.put_together()
    assert sorted(p.name[-8:] for p in tmp_path.iterdir()) == ["00.jsonl", "04.jsonl", "08.jsonl"]
    assert listed.chain(10) == chain
    listed.append(files(expected[10]))
    assert paths(listed) == paths(FileList(tmp_path)) == expected
    assert paths(listed, 7) == expected[7:]


def test_a_crash_while_segments_are_put_together_loses_nothing(tmp_path: Path) -> None:
    listed = FileList(tmp_path)
    for path in ("a", "b", "c"):
        listed.append(files(path))
    first, second, _ = sorted(tmp_path.iterdir())
    first.write_bytes(first.read_bytes() + second.read_bytes())
    again = FileList(tmp_path)
    assert paths(again) == ["a", "b", "c"]
    again.append(files("d"))
    assert paths(FileList(tmp_path)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("damage", ["gap", "text", "order", "empty"])
def test_damage_is_noticed(tmp_path: Path, damage: str) -> None:
    listed = FileList(tmp_path)
    listed.append(files("a", "b"))
    listed.append(files("c"))
    first, second = sorted(tmp_path.iterdir())
    lines = first.read_bytes().splitlines()
    match damage:
        case "gap":
            first.unlink()
        case "text":
            second.write_text("{")
        case "order":
            first.write_bytes(lines[1] + b"\n" + lines[0] + b"\n")
        case "empty":
            second.write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        FileList(tmp_path)
    assert caught.value.code is ErrorCode.CHECKPOINT_INVALID


def test_a_draft_of_a_crashed_process_is_ignored(tmp_path: Path) -> None:
    FileList(tmp_path).append(files("a"))
    (tmp_path / ".00000000000000000001.jsonl.abc.draft").write_text("{")
    assert paths(FileList(tmp_path)) == ["a"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(LakeUnavailableError):
        FileList(tmp_path / "taken" / "files").append(files("a"))


def test_names_of_any_bytes_are_kept(tmp_path: Path) -> None:
    hostile = ["a\nb", "\udcff", "ü", '"', "\u2028"]
    FileList(tmp_path).append(files(*hostile))
    assert paths(FileList(tmp_path)) == hostile
    lines = next(tmp_path.iterdir()).read_bytes().split(b"\n")
    assert [json.loads(line)["path"] for line in lines if line] == hostile
