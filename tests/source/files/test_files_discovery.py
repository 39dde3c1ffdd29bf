from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import DivergedError, FencedError, SourceUnavailableError
from distributary.model.manifest import SourceRange, files_of
from distributary.source.base import Position, spread
from distributary.source.files.file_list import FileList, ListedFile, Walk
from distributary.source.files.source import FilesSource
from tests.source.change_files import avro, events, found, named, put, records, source, uuids


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def one(root: Path, tmp_path: Path) -> FilesSource:
    return source(root, tmp_path / "checkpoint")


def place(position: Position | None) -> int:
    """How many files were read at a position."""
    assert position is not None
    return int(position["files"])


def test_files_that_are_there_at_the_start_come_in_the_order_of_paths(
    root: Path, one: FilesSource
) -> None:
    paths = [named(n, table=table) for table in ("orders", "users") for n in (1, 2)]
    for path in reversed(paths):
        put(root, path, b"x")
    assert one.first() == {"files": 0}
    assert found(one) == paths


def test_files_that_come_while_it_runs_are_found_once(root: Path, one: FilesSource) -> None:
    put(root, named(1), b"x")
    assert found(one) == [named(1)]
    put(root, named(0), b"x")
    put(root, named(2, table="new"), b"x")
    late = named(3, minute="1999/01/02/03/04")
    put(root, late, b"x")
    assert found(one, 1) == sorted([late, named(0), named(2, table="new")])
    assert found(one, 4) == []


def test_a_restart_finds_the_same_files_under_the_same_numbers(root: Path, tmp_path: Path) -> None:
    put(root, named(5), b"x")
    before = source(root, tmp_path / "checkpoint")
    assert found(before) == [named(5)]
    put(root, named(1), b"x")
    after = source(root, tmp_path / "checkpoint")
    # a crash between finding and reading: the file has its number, and is read next
    assert found(after) == [named(5), named(1)]
    assert place(after.advance({"files": 0}, after.newest())) == 2
    with pytest.raises(FencedError):
        before.newest()


def test_a_file_that_grows_is_found_again(root: Path, one: FilesSource) -> None:
    put(root, named(1), b"x")
    assert found(one) == [named(1)]
    put(root, named(1), b"xy")
    assert found(one, 1) == [named(1)]


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    most_files=st.integers(1, 5),
    most_bytes=st.integers(1, 100),
)
def test_batches_take_every_file_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most_files: int, most_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("batches")
    for number, size in enumerate(sizes):
        put(folder / "in", named(number + 10), b"x" * size)
    limits = {"max_files_per_batch": most_files, "max_bytes_per_batch": most_bytes}
    one = source(folder / "in", folder / "checkpoint", **limits)
    start, until, taken = one.first(), one.newest(), []
    while (end := one.advance(start, until)) is not None:
        batch = sizes[start["files"] : end["files"]]
        assert len(batch) <= most_files
        assert len(batch) == 1 or sum(batch) <= most_bytes
        taken += batch
        start = end
    assert taken == sizes


def test_empty_files_markers_and_schemas_are_skipped(root: Path, one: FilesSource) -> None:
    put(root, named(1), b"x")
    put(root, named(2), b"")
    put(root, "shop_orders/2024/05/09/06/56/_SUCCESS", b"x")
    put(root, "shop_orders/2024/05/09/06/56/a_schema.json", b"x")
    put(root, ".git/config.avro", b"x")
    assert found(one) == [named(1)]
    # an empty file may have been just begun
    put(root, named(2), b"x")
    assert found(one, 1) == [named(2)]


def test_lists_and_the_start_date(root: Path, tmp_path: Path) -> None:
    for table in ("orders", "audit", "users"):
        for minute in ("2023/12/31/23/59", "2024/01/01/00/00"):
            put(root, named(table=table, minute=minute), b"x")
    settings = {"include": "shop_*", "exclude": ["shop_audit"], "start_date": "2024-01-01"}
    one = source(root, tmp_path / "checkpoint", **settings)
    wanted = [named(table=table, minute="2024/01/01/00/00") for table in ("orders", "users")]
    assert found(one) == wanted
    wider = source(root, tmp_path / "checkpoint")
    assert len(found(wider)) == 6


def test_a_young_file_is_waited_for(root: Path, one: FilesSource) -> None:
    put(root, named(1), b"x", age=0)
    put(root, named(2), b"x")
    assert found(one) == [named(1), named(2)]


def test_a_file_that_is_being_written_is_left_for_later(root: Path, tmp_path: Path) -> None:
    one = source(root, tmp_path / "checkpoint", settle="1s")
    file = put(root, named(1), b"x", age=0)
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.05):
            with file.open("ab") as opened:
                opened.write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert found(one) == []
    finally:
        stop.set()
        writer.join()
    assert found(one) == [named(1)]


def test_a_file_that_was_moved_into_its_place_is_whole(root: Path, tmp_path: Path) -> None:
    one = source(root, tmp_path / "checkpoint", settle="1h")
    draft = put(root, "shop_orders/2024/05/09/06/56/.draft", b"x", age=0)
    while time.time_ns() - draft.stat().st_mtime_ns < 20_000_000:
        time.sleep(0.005)
    draft.rename(root / named(1))
    assert found(one) == [named(1)]


def test_a_clock_that_is_ahead_stops_nothing(root: Path, one: FilesSource) -> None:
    put(root, named(1), b"x", age=-1000)
    assert found(one) == [named(1)]


def test_hostile_names(root: Path, one: FilesSource, tmp_path: Path) -> None:
    data = avro(events(1))
    names = ["a b.avro", "ü\u202e.avro", "line\nbreak.avro", "%2e%2e.avro", "'; --.avro", "*.avro"]
    for name in names:
        put(root, f"shop_orders/2024/05/09/06/56/{name}", data)
    bytes_name = os.fsencode(root / "shop_orders/2024/05/09/06/56/") + b"/\xff\xfe.avro"
    Path(os.fsdecode(bytes_name)).write_bytes(data)
    read = records(one)
    assert len(uuids(read)) == len(names) + 1
    assert {topic.rpartition("/")[2] for topic in read["topic"].to_pylist()} == {
        *names,
        "\\udcff\\udcfe.avro",
    }
    assert sorted(found(one)) == sorted(found(source(root, tmp_path / "other")))


def test_links_are_not_followed(root: Path, one: FilesSource, tmp_path: Path) -> None:
    outside = put(tmp_path / "outside", named(1), b"secret").parent
    (root / "shop_links").symlink_to(outside, target_is_directory=True)
    (root / "shop_loop").symlink_to(root, target_is_directory=True)
    minute = root / "shop_orders/2024/05/09/06/56"
    minute.mkdir(parents=True)
    (minute / "link.avro").symlink_to(outside / "nothing.avro")
    (minute / "up.avro").symlink_to("../../../../../../../outside")
    os.mkfifo(minute / "pipe.avro")
    put(root, named(2), b"x")
    assert found(one) == [named(2)]


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    put(root, named(1), avro(events(2)))
    link = tmp_path / "link"
    link.symlink_to(root, target_is_directory=True)
    assert len(uuids(records(source(link, tmp_path / "checkpoint")))) == 2


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    one = source(tmp_path / "none", tmp_path / "checkpoint")
    with pytest.raises(SourceUnavailableError):
        one.newest()
    put(tmp_path / "none", named(1), b"x")
    assert found(one) == [named(1)]


def test_peek_writes_nothing_into_the_file_list(root: Path, one: FilesSource) -> None:
    put(root, named(1), avro(events(3)))
    assert len(records(one)) == 3
    assert not one._folder.exists()
    assert one.newest() == {"files": 1}
    put(root, named(2), avro(events(2)))
    assert records(one, {"files": 1})["partition"].to_pylist() == [1, 1]
    assert one.newest() == {"files": 2}


def test_peek_is_one_batch(root: Path, tmp_path: Path) -> None:
    for number in range(5):
        put(root, named(number), avro(events(2)))
    one = source(root, tmp_path / "checkpoint", max_files_per_batch=3)
    assert len(records(one)) == 6
    one.newest()
    assert len(records(one, {"files": 3})) == 4


def offsets(one: FilesSource, start: int, end: int) -> SourceRange:
    return SourceRange("in", 0, one._offset(start), one._offset(end), 1)


def test_a_batch_of_before_is_found_again_by_its_ranges(root: Path, one: FilesSource) -> None:
    for number in range(4):
        put(root, named(number), b"x")
    one.newest()
    covered = offsets(one, 1, 3)
    assert files_of(covered) == range(1, 3)
    assert place(one.retrace({"files": 1}, [covered])) == 3
    assert place(one.retrace({"files": 1}, [])) == 1


def test_a_position_behind_files_that_the_file_list_lost_is_refused(
    root: Path, tmp_path: Path
) -> None:
    for number in (2, 3):
        put(root, named(number), b"x")
        one = source(root, tmp_path / "one")
        one.newest()
    end = one.advance({"files": 0}, one.newest())
    assert end is not None
    max((tmp_path / "one").rglob("*.jsonl")).unlink()
    # it would be given the number of one that was read
    put(root, named(1), b"x")
    late = source(root, tmp_path / "one")
    with pytest.raises(DivergedError):
        late.advance(end, late.newest())


def test_a_file_list_of_other_files_is_noticed(root: Path, tmp_path: Path) -> None:
    put(root, named(2), b"x")
    one = source(root, tmp_path / "one")
    one.newest()
    put(root, named(1), b"x")
    one.newest()
    covered = offsets(one, 0, 2)
    other = source(root, tmp_path / "other")
    with pytest.raises(DivergedError):
        other.retrace({"files": 0}, [covered])
    other.newest()
    with pytest.raises(DivergedError):
        other.retrace({"files": 0}, [covered])


def test_five_thousand_files_are_listed_without_looking_twice(root: Path) -> None:
    for folder in range(50):
        for number in range(100):
            put(root, named(number, minute=f"2024/05/09/06/{folder:02d}"), b"x", age=10**5)
    now = time.time_ns() + 10**6 * 10**9
    looked: list[str] = []

    class Counting(Walk):
        def _listed(self, folder: str):  # type: ignore[no-untyped-def]
            looked.append(folder)
            return super()._listed(folder)

    walk = Counting(str(root), clock=lambda: now)
    assert len(list(walk.files())) == 5000
    looked.clear()
    # nobody kept what was listed: it is listed again
    assert len(list(walk.files())) == 5000
    walk.confirm()
    looked.clear()
    assert list(walk.files()) == []
    assert looked == []
    put(root, named(0, minute="2024/05/09/06/07"), b"again", age=10**5)
    late = put(root, named(777, minute="2024/05/09/06/07"), b"x", age=10**5)
    assert str(late.relative_to(root)) in {file.path for file in walk.files()}
    assert looked == ["shop_orders/2024/05/09/06/07"]
    now += 2 * 3600 * 10**9
    assert len(list(walk.files())) == 5001


def test_a_folder_with_anything_young_in_it_is_looked_at_again(root: Path) -> None:
    file = put(root, named(1), b"x", age=0)
    walk = Walk(str(root))
    assert len(list(walk.files())) == 1
    walk.confirm()
    with file.open("ab") as opened:
        opened.write(b"more")
    assert [found.size for found in walk.files()] == [5]


@given(sizes=st.lists(st.integers(0, 10**9), max_size=40), tasks=st.integers(1, 8))
def test_files_are_spread_by_size(sizes: list[int], tasks: int) -> None:
    files = [ListedFile(n, f"{n}", size, 0, 0) for n, size in enumerate(sizes)]
    loads = spread(files, tasks, weight=lambda f: f.size + 65_536, order=lambda f: f.number)
    assert sorted((f for load in loads for f in load), key=lambda f: f.number) == files
    assert len(loads) == min(tasks, len(files))
    assert all(load == sorted(load, key=lambda f: f.number) for load in loads)
    if loads:
        heaviest = max(sum(f.size + 65_536 for f in load) for load in loads)
        fair = sum(f.size + 65_536 for f in files) / len(loads)
        assert heaviest <= fair + max(sizes) + 65_536


def test_a_busy_table_does_not_fill_a_batch(root: Path, tmp_path: Path) -> None:
    busy = [named(n, table="busy") for n in range(7)]
    quiet = [named(n, table="quiet") for n in range(2)]
    for path in (*busy, *quiet):
        put(root, path, b"x")
    one = source(root, tmp_path / "checkpoint", max_files_per_table=3)
    until, start, batches = one.newest(), one.first(), list[list[str]]()
    while (end := one.advance(start, until)) is not None:
        files = FileList(tmp_path / "checkpoint" / "files").files(place(start), place(end))
        batches.append([file.path for file in files])
        start = end
    assert batches == [busy[:3] + quiet, busy[3:6], busy[6:]]
