"""`verify` of every kind of table against the ledger, its own log and bronze."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.delta.log import load
from distributary.delta.removal.vacuum import Expiry, expire_letters
from distributary.engine.progress.checkpoint import Checkpoint, ManifestCopy
from distributary.observe.cards import Registration, register
from distributary.observe.deadletters import DeadLetters
from distributary.publish.parking import parked
from distributary.store.base import at
from tests.cli.conftest import Cli
from tests.lakes.settled import (
    BRONZE,
    LETTERS,
    NOON,
    UNIFIED,
    SettledLake,
    empty_newest,
    live_files,
)
from tests.lakes.written import pin_file

CHESS, GO = "silver_chess", "silver_go"


@pytest.fixture
def games(own_folder: Path) -> SettledLake:
    lake = SettledLake(own_folder)
    lake.batch({"chess": 10, "go": 5}, letters=2)
    lake.batch({"chess": 10})
    lake.batch({"chess": 10, "go": 5}, letters=1)
    return lake


def verified(cli: Cli, *arguments: object, code: int) -> dict[str, dict[str, Any]]:
    result = cli("verify", *(arguments or ("--all",)), "--json")
    assert result.code == code, result.out + result.err
    assert result.json["agree"] is (code == 0)
    return {table["table"]: table for table in result.json["tables"]}


def kinds(table: dict[str, Any]) -> list[str]:
    assert table["agrees"] is not bool(table["findings"])
    assert all(f["what"] and f["evidence"] and f["next_step"] for f in table["findings"])
    return sorted(finding["kind"] for finding in table["findings"])


def test_tables_that_are_what_the_ledger_says(cli: Cli, games: SettledLake) -> None:
    tables = verified(cli, code=0)
    rows = {name: (t["rows"], t["rows_by_ledger"]) for name, t in tables.items()}
    assert rows == {CHESS: (30, 30), GO: (10, 10), LETTERS: (3, 3), BRONZE: (43, 43)}
    assert tables[CHESS]["compared"] == ["marks", "rows", "files"]
    text = cli("verify", "--all")
    assert text.code == 0
    assert "agree" in text.out
    assert list(verified(cli, GO, code=0)) == [GO]


def test_a_folder_that_is_gone(cli: Cli, games: SettledLake) -> None:
    shutil.rmtree(games.lake / GO)
    tables = verified(cli, code=1)
    assert kinds(tables[GO]) == ["missing"]
    assert kinds(tables[CHESS]) == []
    text = cli("verify", "--all")
    assert f"distributary reset {games.file} --table {GO}" in text.out


def test_the_newest_commit_was_emptied(cli: Cli, games: SettledLake) -> None:
    empty_newest(games, CHESS)
    found = verified(cli, CHESS, code=1)[CHESS]
    assert kinds(found) == ["behind", "rows"]
    assert "version 2" in str(found["findings"])


def test_an_older_commit_was_emptied(cli: Cli, games: SettledLake) -> None:
    games.commits(CHESS)[1].write_text("")
    assert kinds(verified(cli, CHESS, code=1)[CHESS]) == ["unreadable"]


def test_a_copy_of_yesterday_was_put_back(cli: Cli, games: SettledLake) -> None:
    games.copy(CHESS, "yesterday")
    games.batch({"chess": 7})
    games.put_back("yesterday", CHESS)
    found = verified(cli, CHESS, code=1)[CHESS]
    assert kinds(found) == ["behind", "rows"]
    (behind,) = (f for f in found["findings"] if f["kind"] == "behind")
    assert "batch 3" in behind["evidence"]


def test_a_data_file_is_gone_or_cut_short(cli: Cli, games: SettledLake) -> None:
    live_files(games.lake / GO)[0].unlink()
    live_files(games.lake / CHESS)[1].write_bytes(b"short")
    tables = verified(cli, code=1)
    assert kinds(tables[GO]) == ["file_missing"]
    assert kinds(tables[CHESS]) == ["file_changed"]


@pytest.mark.parametrize("operation", ["DELETE", "RESTORE", "WRITE (Overwrite)"])
def test_others_are_named_by_what_they_did(cli: Cli, games: SettledLake, operation: str) -> None:
    table = DeltaTable(games.lake / CHESS)
    if operation == "DELETE":
        table.delete("_offset < 5")
    elif operation == "RESTORE":
        table.restore(1)
    else:
        write_deltalake(table, table.to_pyarrow_table().slice(0, 3), mode="overwrite")
    found = verified(cli, CHESS, code=1)[CHESS]
    assert kinds(found) == ["foreign"]
    assert operation in found["findings"][0]["evidence"]
    # the next batch goes on top of it, and the difference stays explained
    games.batch({"chess": 4})
    assert kinds(verified(cli, CHESS, code=1)[CHESS]) == ["foreign"]


def test_compaction_by_others_changes_nothing(cli: Cli, games: SettledLake) -> None:
    DeltaTable(games.lake / CHESS).optimize.compact()
    assert kinds(verified(cli, CHESS, code=0)[CHESS]) == []
    table = DeltaTable(games.lake / CHESS)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert kinds(verified(cli, CHESS, "--deep", code=0)[CHESS]) == []


def test_rows_that_somebody_else_has_written(cli: Cli, games: SettledLake) -> None:
    rows = DeltaTable(games.lake / CHESS).to_pyarrow_table().slice(0, 2)
    write_deltalake(games.lake / CHESS, rows, mode="append")
    assert kinds(verified(cli, CHESS, code=1)[CHESS]) == ["foreign"]
    assert kinds(verified(cli, CHESS, "--deep", code=1)[CHESS]) == [
        *("batch_counts", "duplicates", "foreign")
    ]


def test_what_is_parked_is_not_in_the_table_yet(cli: Cli, games: SettledLake) -> None:
    games.batch({"chess": 6, "go": 6}, parked=[GO])
    tables = verified(cli, "--all", "--deep", code=0)
    assert (tables[GO]["rows"], tables[GO]["parked_batches"]) == (10, 1)
    games.resume(GO)
    tables = verified(cli, "--all", "--deep", code=0)
    assert (tables[GO]["rows"], tables[GO]["parked_batches"]) == (16, 0)


def test_a_table_that_never_got_anything_is_not_missed(cli: Cli, own_folder: Path) -> None:
    lake = SettledLake(own_folder)
    lake.batch({"chess": 3}, parked=[CHESS])
    shutil.rmtree(lake.lake / CHESS)
    assert kinds(verified(cli, code=0)[CHESS]) == []


def test_letters_that_were_replayed(cli: Cli, games: SettledLake) -> None:
    games.replay("chess", [15, 16])
    letters = DeadLetters(str(games.lake / LETTERS))
    ids = letters.select(columns=["id", "offset"]).filter(pc.field("offset") < 17)["id"]
    assert letters.mark_replayed(ids.to_pylist(), replay=0) == 2
    tables = verified(cli, "--all", "--deep", code=0)
    assert (tables[LETTERS]["rows"], tables[CHESS]["rows"]) == (3, 32)


def test_a_letter_that_is_called_replayed_must_be_in_its_table(
    cli: Cli, games: SettledLake
) -> None:
    letters = DeadLetters(str(games.lake / LETTERS))
    letters.mark_replayed(letters.select(columns=["id"])["id"].to_pylist(), replay=0)
    assert kinds(verified(cli, CHESS, "--deep", code=1)[CHESS]) == ["lost"]


def test_letters_that_maintenance_has_removed(cli: Cli, games: SettledLake) -> None:
    letters = DeadLetters(str(games.lake / LETTERS))
    letters.discard(letters.select(columns=["id"])["id"].to_pylist()[:2], note="old")
    state = load(at(games.lake / LETTERS))
    assert state is not None
    expire_letters(state, Expiry(NOON + timedelta(days=1)))
    tables = verified(cli, "--all", "--deep", code=0)
    assert (tables[LETTERS]["rows"], tables[LETTERS]["rows_by_ledger"]) == (1, 3)
    # bronze alone has them now, which is what was wanted
    assert any("maintain" in note for note in tables[CHESS]["notes"])


@pytest.mark.parametrize("minutes", [1.5, 60])
def test_a_ledger_whose_detail_has_expired(cli: Cli, games: SettledLake, minutes: float) -> None:
    games.batch({"chess": 6, "go": 6}, parked=[GO])
    games.ledger.expire(NOON + timedelta(minutes=minutes))
    verified(cli, "--all", "--deep", code=0)
    empty_newest(games, CHESS)
    assert kinds(verified(cli, CHESS, code=1)[CHESS]) == ["behind", "rows"]


def test_a_batch_that_is_not_settled_yet_is_no_difference(cli: Cli, games: SettledLake) -> None:
    games.batch({"chess": 8}, settled=False)
    found = verified(cli, CHESS, code=0)[CHESS]
    assert (found["rows"], found["rows_by_ledger"], len(found["notes"])) == (38, 30, 1)
    assert "batch 3" in found["notes"][0]


def test_plain_parquet_tables(cli: Cli, own_folder: Path) -> None:
    lake = SettledLake(own_folder, format="parquet")
    lake.batch({"chess": 10, "go": 5}, letters=1)
    lake.batch({"chess": 10})
    tables = verified(cli, "--all", "--deep", code=0)
    assert {name: t["rows"] for name, t in tables.items()} == {
        CHESS: 20,
        GO: 5,
        BRONZE: 26,
        LETTERS: 1,
    }
    next((lake.lake / GO).glob("part-*.parquet")).unlink()
    newest = sorted((lake.lake / CHESS / "_distributary" / "log").iterdir())[-1]
    newest.unlink()
    tables = verified(cli, code=1)
    assert kinds(tables[GO]) == ["file_missing", "rows"]
    assert kinds(tables[CHESS]) == ["behind"]
    shutil.rmtree(lake.lake / GO)
    assert kinds(verified(cli, GO, code=1)[GO]) == ["missing"]


def test_pipelines_that_share_tables(cli: Cli, own_folder: Path) -> None:
    one = SettledLake(own_folder, unified=True, bronze=False)
    two = SettledLake(own_folder, name="others", unified=True, bronze=False)
    one.batch({"chess": 5}, letters=2)
    two.batch({"shogi": 7}, letters=1)
    tables = verified(cli, "--all", "--deep", code=0)
    assert (tables[UNIFIED]["rows"], tables[LETTERS]["rows"]) == (12, 3)
    assert sorted(tables[UNIFIED]["pipelines"]) == ["games", "others"]
    empty_newest(two, UNIFIED)
    assert kinds(verified(cli, UNIFIED, code=1)[UNIFIED]) == ["behind", "rows"]
    # a table that others write to as well: whoever is asked about, all of it is looked at
    assert kinds(verified(cli, "--all", "--pipeline", "games", code=1)[UNIFIED]) == [
        *("behind", "rows")
    ]


def test_a_row_that_only_bronze_has(cli: Cli, games: SettledLake) -> None:
    table = DeltaTable(games.lake / CHESS)
    rows = table.to_pyarrow_table()
    offsets = rows["_offset"].to_pylist()
    doubled = pa.concat_tables([rows.slice(1), rows.slice(5, 1)])
    write_deltalake(table, doubled, mode="overwrite")
    # as many rows as before: only --deep looks at which they are
    assert kinds(verified(cli, CHESS, code=0)[CHESS]) == []
    found = verified(cli, CHESS, "--deep", code=1)[CHESS]
    assert set(kinds(found)) >= {"duplicates", "lost"}
    lost = next(f for f in found["findings"] if f["kind"] == "lost")
    assert f"wrapper/0/{offsets[0]}" in lost["evidence"]
    assert any("bronze_events" in each for each in found["compared"])


def test_without_bronze_the_ledgers_ranges_are_the_measure(cli: Cli, own_folder: Path) -> None:
    lake = SettledLake(own_folder, bronze=False)
    lake.batch({"chess": 5})
    lake.batch({"chess": 5})
    assert kinds(verified(cli, CHESS, "--deep", code=0)[CHESS]) == []
    table = DeltaTable(lake.lake / CHESS)
    rows = table.to_pyarrow_table()
    moved = rows.set_column(3, "_offset", pa.array([*range(9), 4711], pa.int64()))
    write_deltalake(table, moved, mode="overwrite")
    assert kinds(verified(cli, CHESS, "--deep", code=1)[CHESS]) == ["outside"]


def test_without_coordinates_only_counts_are_compared(cli: Cli, own_folder: Path) -> None:
    lake = SettledLake(own_folder, metadata=False)
    lake.batch({"chess": 5})
    found = verified(cli, CHESS, "--deep", code=0)[CHESS]
    assert any("coordinates" in note for note in found["notes"])


def test_a_new_life_reads_everything_again(cli: Cli, own_folder: Path) -> None:
    SettledLake(own_folder).batch({"chess": 5})
    later = SettledLake(own_folder, life="life2")
    later.batch({"chess": 5})
    found = verified(cli, "--all", "--deep", code=0)
    assert found[CHESS]["rows"] == 10


def test_a_log_that_nobody_can_read(cli: Cli, games: SettledLake) -> None:
    games.commits(CHESS)[-1].write_text("garbage{")
    assert kinds(verified(cli, CHESS, code=1)[CHESS]) == ["unreadable"]


def test_a_lake_that_was_moved(cli: Cli, games: SettledLake, own_folder: Path) -> None:
    games.lake.rename(own_folder / "elsewhere")
    assert verified(cli, "--all", "--lake", own_folder / "elsewhere", code=0)[CHESS]["rows"] == 30


def test_usage(cli: Cli, games: SettledLake) -> None:
    assert cli("verify", CHESS, "--as-of", "2026-11-15T12:00:00Z").code == 2
    assert cli("verify", "--all", "--as-of", "2026-11-15T12:00:00Z", "--deep").code == 2


def lanes(cli: Cli, *arguments: object, code: int) -> dict[str, list[str]]:
    """By pipeline and lane, the kinds of gaps."""
    result = cli("verify", "--all", "--json", *arguments)
    assert result.code == code, result.out + result.err
    assert result.json["agree"] is (code == 0)
    return {f"{x['pipeline']}/{x['lane']}": kinds(x) for x in result.json["lanes"]}


@pytest.mark.parametrize("deep", [(), ("--deep",)])
def test_a_ledger_that_lacks_batches_between_others_is_found(
    cli: Cli, games: SettledLake, deep: tuple[str, ...]
) -> None:
    assert lanes(cli, *deep, code=0) == {"games/stream": []}
    games.batches += 2
    games.batch({"chess": 4})
    assert lanes(cli, *deep, code=1) == {"games/stream": ["batch_gap"]}
    text = cli("verify", "--all", *deep)
    assert "batches 3 to 4" in text.out and "has gaps" in text.out


@pytest.mark.parametrize("outside", [False, True], ids=["in the lake", "outside of it"])
def test_a_lake_that_is_older_than_its_checkpoint_is_found(
    cli: Cli, games: SettledLake, own_folder: Path, outside: bool
) -> None:
    place = own_folder / "progress" if outside else games.checkpoint
    if outside:
        text = games.file.read_text().replace("lake: {", f"lake: {{checkpoint: {place.parent}, ")
        games.file.write_text(text)
        register(str(games.lake), Registration(games.name, str(games.file), str(place)))
    pin_file(games.lake, games.file)
    checkpoint = Checkpoint.begin(at(str(place)), pipeline=games.name, life=games.life)
    checkpoint.manifests().settle(games.batches - 1)
    assert lanes(cli, code=0) == {"games/stream": []}
    checkpoint.manifests().settle(games.batches + 1)
    assert lanes(cli, code=1) == {"games/stream": ["behind_checkpoint"]}
    assert f"batches {games.batches} to {games.batches + 1}" in cli("verify", "--all").out
    shutil.rmtree(place)
    Checkpoint.begin(at(str(place)), pipeline=games.name, life="another")
    assert lanes(cli, code=0) == {"games/stream": []}
    Checkpoint(at(str(place)), "another").manifests().settle(0)
    found = {"games/stream": ["behind_checkpoint"]}
    # the other life has no batch in the ledger at all
    assert lanes(cli, code=1) == found
    # a copy of the lake has the card of the original, whose checkpoint is not its own
    copy = own_folder / "copy"
    shutil.copytree(games.lake, copy)
    checks = cli("verify", "--all", "--json", "--lake", copy).json["lanes"]
    assert [kinds(check) for check in checks] == [[]]


def test_records_between_two_batches_that_no_batch_has_read_are_found(
    cli: Cli, games: SettledLake
) -> None:
    games.offset += 7
    games.batch({"chess": 4})
    games.batch({"chess": 4})
    assert lanes(cli, code=1) == {"games/stream": ["range_gap"]}
    assert "wrapper/0: 43 to 49" in cli("verify", "--all").out


def test_only_the_newest_ranges_are_compared_without_deep(
    cli: Cli, games: SettledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributary.observe.verify.gaps.NEWEST", 2)
    games.offset += 7
    for _ in range(3):
        games.batch({"chess": 4})
    assert lanes(cli, code=0) == {"games/stream": []}
    assert lanes(cli, "--deep", code=1) == {"games/stream": ["range_gap"]}


def test_sums_of_old_batches_are_no_gaps(cli: Cli, games: SettledLake) -> None:
    games.ledger.expire(NOON + timedelta(minutes=2))
    assert lanes(cli, code=0) == {"games/stream": []}
    games.batches += 1
    games.batch({"chess": 4})
    assert lanes(cli, code=1) == {"games/stream": ["batch_gap"]}
    assert "batches 3\n" in cli("verify", "--all").out


def gone(cli: Cli, games: SettledLake) -> None:
    """Two batches wait for a table, and the folder of one of them is removed."""
    games.batch({"chess": 4, "go": 3}, parked=[CHESS])
    last = games.batch({"chess": 6}, parked=[CHESS])
    Checkpoint.begin(at(games.checkpoint), pipeline=games.name, life=games.life)
    ManifestCopy(str(games.lake), games.name).write(last.to_json().encode())
    first = min(Path(games.parking, CHESS).iterdir())
    shutil.rmtree(first)


def test_batches_that_waited_and_are_gone_are_named_by_all_who_look(
    cli: Cli, games: SettledLake
) -> None:
    gone(cli, games)
    assert lanes(cli, code=1) == {"games/stream": ["parked_lost"]}
    assert f"{CHESS}: batch 3, 4 records" in cli("verify", "--all").out
    found = cli("status", "--json").json["pipelines"][0]["parked"]
    assert [(t["table"], t["batches"], t["lost_batches"]) for t in found] == [(CHESS, 2, 1)]
    text = cli("status").out
    assert "gone from the folder" in text and f"resume {CHESS}" not in text
    for more in ((), ("--dry-run",)):
        refused = cli("resume", CHESS, "--file", games.file, "--json", *more)
        assert (refused.code, refused.json["error"]["code"]) == (1, "TABLE_BEHIND")
    # the one that is still there waits on
    assert [p.mark.batch for p in parked(games.parking)] == [4]
    assert cli("reset", games.file, "--table", CHESS, "--yes").code == 0
    assert lanes(cli, code=0) == {"games/stream": []}


def test_what_waited_in_a_life_that_was_ended_is_not_lost(cli: Cli, games: SettledLake) -> None:
    gone(cli, games)
    assert cli("reset", games.file, "--yes").code == 0
    assert lanes(cli, code=0) == {"games/stream": []}


def test_tables_at_a_cut(cli: Cli, games: SettledLake) -> None:
    newest = verified(cli, "--all", "--as-of", "2", code=0)
    earlier = verified(cli, CHESS, GO, "--as-of", "games:0", code=0)
    assert (earlier[CHESS]["rows"], earlier[CHESS]["rows_by_ledger"]) == (10, 10)
    assert earlier[CHESS]["compared"] == ["files", "rows"]
    assert (newest[CHESS]["rows"], newest[GO]["rows_by_ledger"]) == (30, 10)
    # what other programs do later is not in the cut
    DeltaTable(str(games.lake / CHESS)).delete("_offset < 5")
    assert verified(cli, CHESS, "--as-of", "1", code=0)[CHESS]["rows"] == 20
    DeltaTable(str(games.lake / CHESS)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    (finding,) = verified(cli, CHESS, "--as-of", "1", code=1)[CHESS]["findings"]
    assert finding["kind"] == "file_missing"
    assert cli("verify", CHESS, "--as-of", "99").code == 2


def test_a_commit_of_others_within_a_cut(cli: Cli, games: SettledLake) -> None:
    DeltaTable(str(games.lake / CHESS)).delete("_offset < 5")
    games.batch({"chess": 1})
    (finding,) = verified(cli, CHESS, "--as-of", "3", code=1)[CHESS]["findings"]
    assert (finding["kind"], finding["what"]) == ("rows", "rows of the cut: 26 instead of 31")
