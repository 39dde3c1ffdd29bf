"""Erasures: what goes from every layer, what stays, and what is remembered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.lake import Maintain
from distributary.delta.removal.erased_records import (
    IN_TABLES,
    erased_plan,
    is_done,
    names_in,
    read_erasure,
    write_later,
)
from distributary.engine.progress import erasure as carrying
from distributary.engine.progress.checkpoint import Manifests
from distributary.engine.progress.claim import Claim
from distributary.engine.progress.erasure import finish_erasures
from distributary.errors import CheckpointError, ConfigError, ErrorCode, OwnedError
from distributary.model import layout
from distributary.observe.cuts import Cuts
from distributary.observe.verify.checksums import check_files
from distributary.observe.verify.coordinates import coordinates
from distributary.observe.verify.row_counts import check_table, written_tables
from distributary.operations import erase as erasing
from distributary.operations.erase import EraseCondition, erase, find, keys_in, where
from distributary.operations.maintain import UpkeepStep, Wishes, jobs_of, maintain
from distributary.operations.pins import pin_cut
from distributary.store.base import at
from tests.lakes.settled import BRONZE, LETTERS, NOON, UNIFIED, SettledLake

TABLES = ("silver_chess", "silver_go", UNIFIED, BRONZE)
USERS = ("ada", "bob", "cy")


def made(root: Path) -> SettledLake:
    """Three batches: 6 of chess, 3 of go, one letter each; users take turns."""
    found = SettledLake(root, unified=True, users=USERS)
    for _ in range(3):
        found.batch({"chess": 6, "go": 3}, letters=1)
    return found


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[SettledLake, Path]:
    """A lake, and a copy of it as it was made."""
    root, copy = tmp_path_factory.mktemp("lake"), tmp_path_factory.mktemp("copy")
    lake = made(root)
    shutil.copytree(root, copy, dirs_exist_ok=True)
    return lake, copy


@pytest.fixture
def lake(pristine: tuple[SettledLake, Path]) -> SettledLake:
    """The lake of `made`, at the same place in each test: its log has addresses of files."""
    lake, copy = pristine
    shutil.rmtree(lake.root)
    shutil.copytree(copy, lake.root)
    return replace(lake)


def offsets(lake: SettledLake, table: str) -> list[int]:
    name = "offset" if table == LETTERS else "_offset"
    return sorted(DeltaTable(lake.lake / table).to_pyarrow_table()[name].to_pylist())


def all_offsets(lake: SettledLake) -> dict[str, list[int]]:
    return {name: offsets(lake, name) for name in (*TABLES, LETTERS)}


def expected(
    before: dict[str, list[int]], gone: Callable[[int], bool], *, letters: bool = False
) -> dict[str, list[int]]:
    """What stays: bronze keeps a letter's record as long as the letter is kept."""
    kept = {}
    for name, found in before.items():
        alone = set(before[LETTERS]) if not letters and name in (BRONZE, LETTERS) else set()
        kept[name] = [offset for offset in found if offset in alone or not gone(offset)]
    return kept


def is_ada(offset: int) -> bool:
    return USERS[offset % 3] == "ada"


def assert_proven(lake: SettledLake) -> None:
    every = written_tables(str(lake.lake), lake.ledger.last_commits(), parked={}, files={})
    with coordinates(lake.ledger, every) as place:
        for table in every:
            check = place.check(table, check_files(table, check_table(table)))
            assert check.agrees, (check.table, check.findings)


def test_records_leave_every_layer_and_nothing_else_does(lake: SettledLake) -> None:
    before = all_offsets(lake)
    condition = where("user_id = 'ada'")
    would = find(str(lake.lake), condition)
    assert all_offsets(lake) == before and not names_in(str(lake.lake))
    assert not (lake.lake / "_distributary" / "erased").exists()
    found, certificate = erase(str(lake.lake), condition)
    wanted = expected(before, is_ada)
    assert all_offsets(lake) == wanted
    gone = sum(len(before[name]) - len(wanted[name]) for name in before)
    assert would.rows == found.rows == certificate["rows"] == gone > 0
    by_name = {entry["table"]: entry["rows"] for entry in certificate["tables"]}
    assert by_name[BRONZE] == len(before[BRONZE]) - len(wanted[BRONZE])
    assert_proven(lake)
    # a second time there is nothing
    again, _ = erase(str(lake.lake), condition)
    assert again.rows == 0 and all_offsets(lake) == wanted
    lake.batch({"chess": 2})
    assert_proven(lake)


def test_letters_that_hold_the_value_go_with_raw(lake: SettledLake) -> None:
    before = all_offsets(lake)
    lake_letters = [n for n in before[LETTERS] if is_ada(n)]
    found = find(str(lake.lake), where("user_id = 'ada'"))
    assert found.raw == len(lake_letters) > 0
    assert any("--raw" in note for note in found.notes)
    erase(str(lake.lake), where("user_id = 'ada'"), raw=True)
    assert all_offsets(lake) == expected(before, is_ada, letters=True)
    assert_proven(lake)


def test_plain_values_are_nowhere(lake: SettledLake) -> None:
    erase(str(lake.lake), where("user_id IN ('ada', 'nobody-yet')"))
    for path in (lake.lake / "_distributary" / "erased").rglob("*"):
        if path.is_file():
            assert b"ada" not in path.read_bytes() and b"nobody-yet" not in path.read_bytes()


def test_values_are_remembered_also_of_records_that_were_not_there(lake: SettledLake) -> None:
    erase(str(lake.lake), where("user_id IN ('ada', 'zoe')"))
    known = erased_plan(str(lake.lake)).known()
    rows = pa.table({"user_id": ["ada", "bob", "zoe", None]})
    assert known.with_values(rows, {"user_id": ("user_id",)}).tolist() == [True, False, True, False]


def test_records_are_known_by_place_and_time(lake: SettledLake) -> None:
    erase(str(lake.lake), where("user_id = 'ada'"))
    known = erased_plan(str(lake.lake)).known()
    time = pa.timestamp("us", "UTC")
    rows = pa.table(
        {
            "_topic": ["wrapper", "wrapper", "wrapper", "other"],
            "_partition": pa.array([0, 0, 0, 0], pa.int32()),
            "_offset": pa.array([0, 0, 1, 0], pa.int64()),
            # a topic that was made again has another record at the same offset
            "_timestamp": pa.array([NOON, NOON + timedelta(days=1), NOON, NOON], time),
        }
    )
    assert known.at_places(rows, IN_TABLES).tolist() == [True, False, False, False]


def test_a_condition_that_is_no_value_erases_what_is_there(lake: SettledLake) -> None:
    before = all_offsets(lake)
    found, _ = erase(str(lake.lake), where("_offset % 2 = 0 AND user_id LIKE 'b%'"))
    assert all_offsets(lake) == expected(before, lambda n: n % 2 == 0 and n % 3 == 1)
    assert found.values == () and any("not a list of values" in note for note in found.notes)
    assert_proven(lake)


def test_everything_and_nothing(lake: SettledLake) -> None:
    before = all_offsets(lake)
    found, certificate = erase(str(lake.lake), where("user_id = 'nobody'"))
    assert found.rows == certificate["rows"] == 0 and all_offsets(lake) == before
    erase(str(lake.lake), where("user_id IS NOT NULL"))
    assert all_offsets(lake) == expected(before, lambda n: True)
    assert_proven(lake)
    lake.batch({"chess": 3})
    assert len(offsets(lake, "silver_chess")) == 3
    assert_proven(lake)


def test_keys_from_a_file(lake: SettledLake, tmp_path: Path) -> None:
    before = all_offsets(lake)
    file = tmp_path / "keys.csv"
    file.write_text("\ufeffUSER_ID\r\nada\r\n\r\n'; DROP TABLE x; --\r\ncy\r\n")
    erase(str(lake.lake), keys_in(file))
    assert all_offsets(lake) == expected(before, lambda n: n % 3 in (0, 2))


@pytest.mark.parametrize(
    "text", ["", "user_id\n", "user_id,other\nx\n", "a,a\nx,y\n", 'a\n"x', "a,\nx,y\n"]
)
def test_files_without_keys_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.csv"
    file.write_text(text)
    with pytest.raises(ConfigError):
        keys_in(file)


@pytest.mark.parametrize(
    "text",
    [
        "user_id = (SELECT 'ada')",
        "user_id IN (SELECT content FROM read_text('/etc/passwd'))",
        "getenv('HOME') = user_id",
        "true",
        "1 = 1",
        "user_id = 'a'; DROP TABLE x",
        "random() < 0.5 AND user_id = 'a'",
        "_timestamp < now()",
        "count(*) > 1",
        "read_csv('x') = user_id",
        "",
        "user_id = 'x",
        "*",
    ],
)
def test_hostile_conditions_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        where(text)


@pytest.mark.parametrize("text", ["user_id", "user_id > 5", "_offset + 1", "_offset < 'ada'"])
def test_conditions_that_are_not_true_or_false_erase_nothing(text: str, lake: SettledLake) -> None:
    before = all_offsets(lake)
    with pytest.raises(ConfigError):
        erase(str(lake.lake), where(text))
    assert all_offsets(lake) == before and not names_in(str(lake.lake))


@pytest.mark.parametrize(("text", "rows"), [("user_id = 5", 0), ("_offset = 'ada'", 0)])
def test_values_of_another_type_are_compared_as_texts(
    text: str, rows: int, lake: SettledLake
) -> None:
    before = all_offsets(lake)
    found, _ = erase(str(lake.lake), where(text))
    assert found.rows == rows and all_offsets(lake) == before


def test_a_quote_in_a_value_is_a_value(lake: SettledLake) -> None:
    before = all_offsets(lake)
    found, _ = erase(str(lake.lake), where("user_id = 'x'' OR ''1''=''1'"))
    assert found.rows == 0 and all_offsets(lake) == before


def test_a_running_pipeline_is_not_erased_under(lake: SettledLake) -> None:
    before = all_offsets(lake)
    claim = Claim.take(at(str(lake.checkpoint)), lease=60)
    try:
        with pytest.raises(OwnedError):
            erase(str(lake.lake), where("user_id = 'ada'"))
        assert find(str(lake.lake), where("user_id = 'ada'")).rows > 0
    finally:
        claim.release()
    assert all_offsets(lake) == before and not names_in(str(lake.lake))


def test_batches_that_wait_are_refused_by_name(lake: SettledLake) -> None:
    lake.batch({"chess": 2}, parked=["silver_chess"])
    with pytest.raises(ConfigError) as caught:
        erase(str(lake.lake), where("user_id = 'ada'"))
    assert caught.value.code is ErrorCode.ERASE_REFUSED and "silver_chess" in caught.value.evidence
    lake.resume("silver_chess")
    manifest = lake.batch({"chess": 2}, settled=False)
    Manifests(at(str(lake.checkpoint / "manifests"))).create(manifest)
    with pytest.raises(ConfigError) as caught:
        erase(str(lake.lake), where("user_id = 'ada'"))
    assert caught.value.code is ErrorCode.ERASE_REFUSED
    lake.settle(manifest)
    Manifests(at(str(lake.checkpoint / "manifests"))).settle(manifest.batch)
    before = all_offsets(lake)
    erase(str(lake.lake), where("user_id = 'ada'"))
    assert all_offsets(lake) == expected(before, is_ada)
    assert_proven(lake)


def test_tables_that_cannot_be_erased_are_refused_before_anything_is(tmp_path: Path) -> None:
    lake = SettledLake(tmp_path, users=USERS, format="parquet")
    lake.batch({"chess": 6})
    with pytest.raises(ConfigError) as caught:
        erase(str(lake.lake), where("user_id = 'ada'"))
    assert caught.value.code is ErrorCode.ERASE_REFUSED
    assert "silver_chess" in caught.value.evidence and not names_in(str(lake.lake))


@pytest.mark.parametrize("unified", [False, True])
def test_tables_without_coordinates_are_refused_where_another_table_has_the_records(
    tmp_path: Path, unified: bool
) -> None:
    lake = SettledLake(tmp_path, users=USERS, metadata=False, bronze=not unified, unified=unified)
    lake.batch({"chess": 6})
    table = DeltaTable(lake.lake / "silver_chess")
    assert "user_id" not in table.schema().to_arrow().names
    found = find(str(lake.lake), where("user_id = 'ada'"))
    assert found.rows == 0 and any("no table has all columns" in note for note in found.notes)
    with pytest.raises(ConfigError) as caught:
        erase(str(lake.lake), where("move = 'e4'"))
    assert "silver_chess" in caught.value.evidence


class Killed(BaseException):
    """Ends a process at a step."""


@pytest.mark.parametrize(
    ("after", "by"),
    # each step once, and each way to go on at the first, the middle and the last one
    [(after, "run") for after in range(7)]
    + [
        pytest.param(after, by, marks=() if after in (0, 3, 6) else pytest.mark.slow)
        for by in ("erase", "maintain")
        for after in range(7)
    ],
)
def test_killed_at_any_step_it_is_finished_by_the_next(
    after: int, by: str, lake: SettledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = all_offsets(lake)
    moments: list[str] = []

    def stop(moment: str, _: int) -> None:
        moments.append(moment)
        if len(moments) == after + 1:
            raise Killed

    for module in (carrying, erasing):
        monkeypatch.setattr(module, "reached", stop)
    with pytest.raises(Killed):
        erase(str(lake.lake), where("user_id = 'ada'"))
    (name,) = names_in(str(lake.lake))
    assert not is_done(str(lake.lake), name)
    # nothing that it names comes back from now on, although rows are still there
    assert erased_plan(str(lake.lake)).known().values
    monkeypatch.undo()
    if by == "run":
        assert finish_erasures(str(lake.lake)) == [name]
    elif by == "erase":
        erase(str(lake.lake), where("user_id = 'nobody'"))
    else:
        wishes = Wishes(Maintain(), [UpkeepStep.EXPIRE])
        assert not maintain(str(lake.lake), jobs_of(str(lake.lake)), wishes).failed
    wanted = expected(before, is_ada)
    assert all_offsets(lake) == wanted and is_done(str(lake.lake), name)
    certificate = carrying.certificate_of(str(lake.lake), name)
    assert certificate["rows"] == sum(len(before[n]) - len(wanted[n]) for n in before)
    assert finish_erasures(str(lake.lake), later=True) == []
    assert_proven(lake)


def test_records_that_came_later_leave_bronze(lake: SettledLake) -> None:
    erase(str(lake.lake), where("user_id = 'ada'"))
    first = len(offsets(lake, BRONZE))
    manifest = lake.batch({"go": 3})
    # as hop two leaves it: the record is in bronze, and in no other table
    late = [n for n in offsets(lake, "silver_go")[-3:] if is_ada(n)]
    write_later(str(lake.lake), "x", [("wrapper", 0, n, None) for n in late])
    assert len(offsets(lake, BRONZE)) == first + 3
    wishes = Wishes(Maintain(), [UpkeepStep.EXPIRE])
    maintain(str(lake.lake), jobs_of(str(lake.lake)), wishes)
    assert len(offsets(lake, BRONZE)) == first + 3 - len(late) and manifest.batch == 3
    assert finish_erasures(str(lake.lake), later=True) == []


def test_pinned_cuts_are_named(lake: SettledLake) -> None:
    cuts = Cuts(str(lake.lake))
    pin_cut(cuts, cuts.find("games:2"), datetime.now(UTC) + timedelta(days=90))
    _, certificate = erase(str(lake.lake), where("user_id = 'ada'"))
    held = {entry["table"]: entry.get("held_by") for entry in certificate["tables"]}
    assert any("games:2" in why for why in held["silver_chess"])
    after = next(e for e in certificate["tables"] if e["table"] == "silver_chess")
    assert datetime.fromisoformat(after["files_deleted_after"]) > datetime.now(UTC)


def test_damaged_documents_are_named_and_stop_what_needs_them(lake: SettledLake) -> None:
    erase(str(lake.lake), where("user_id = 'ada'"))
    (name,) = names_in(str(lake.lake))
    path = Path(layout.erased(str(lake.lake))) / name
    path.write_bytes(path.read_bytes().replace(b'"records"', b'"recordz"'))
    with pytest.raises(CheckpointError):
        read_erasure(str(lake.lake), name)
    with pytest.raises(CheckpointError):
        erased_plan(str(lake.lake)).known()


ROWS = st.lists(st.sampled_from([*USERS, "", "é\x00", "a'b"]), min_size=1, max_size=7)


@given(users=ROWS, chosen=st.sets(st.sampled_from([*USERS, "", "a'b"]), min_size=1))
# an example makes and erases a lake
@settings(max_examples=settings.default.max_examples // 5)
def test_what_stays_is_what_a_list_says(
    users: list[str], chosen: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lake = SettledLake(tmp_path_factory.mktemp("lake"), unified=True, users=users)
    for count in (4, 1, 3):
        lake.batch({"chess": count, "go": 1}, letters=1)
    before = all_offsets(lake)
    condition = EraseCondition("", ("user_id",), frozenset((text,) for text in chosen))
    erase(str(lake.lake), condition)
    assert all_offsets(lake) == expected(before, lambda n: users[n % len(users)] in chosen)
    assert_proven(lake)


def test_the_documents_are_sealed_json(lake: SettledLake) -> None:
    erase(str(lake.lake), where("user_id = 'ada'"))
    (name,) = names_in(str(lake.lake))
    text = (Path(layout.erased(str(lake.lake))) / name).read_text()
    document, seal = text.rstrip().rsplit("\n", 1)
    assert seal.startswith("sha256 ") and json.loads(document)["records"]["wrapper"]["0"]
