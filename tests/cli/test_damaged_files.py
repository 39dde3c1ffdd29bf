"""Data files of which bytes have changed: every command that meets one says which one it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.delta.compact import Sizes, compact
from distributary.delta.damage import TAG
from distributary.delta.log import load
from distributary.delta.parquet import write_file
from distributary.errors import DamagedFileError, ErrorCode
from distributary.store.base import at
from tests.changes.logs import event
from tests.cli.conftest import Cli
from tests.cli.upkeep.test_verify import kinds, verified
from tests.lakes.commits import edit_commit
from tests.lakes.settled import BRONZE, LETTERS, SettledLake, live_files
from tests.lakes.written_changes import LOG, MERGED, ChangeLake

CHESS, GO = "silver_chess", "silver_go"


@pytest.fixture
def games(own_folder: Path) -> SettledLake:
    lake = SettledLake(own_folder)
    lake.batch({"chess": 10, "go": 5}, letters=2)
    lake.batch({"chess": 10})
    return lake


def flip(path: Path, at: int) -> bytes:
    """Change one bit of a byte; returns the file as it was."""
    before = path.read_bytes()
    after = bytearray(before)
    after[at] ^= 0x10
    path.write_bytes(after)
    return before


def pages(path: Path) -> range:
    """The bytes that hold values: reading them fails, or gives other ones."""
    columns = [pq.ParquetFile(path).metadata.row_group(0).column(n) for n in (0, 3)]
    return range(columns[0].data_page_offset, columns[1].data_page_offset)


def unreadable(path: Path) -> None:
    """Break the last bytes, which every reader of the file looks at first."""
    flip(path, path.stat().st_size - 2)


def test_a_change_of_any_byte_is_noticed(cli: Cli, games: SettledLake) -> None:
    damaged = live_files(games.lake / CHESS)[1]
    size = damaged.stat().st_size
    # the magic at both ends, pages, the footer with its statistics, its length
    spread = range(0, size, size // 12)
    for at_byte in sorted({*spread, 1, size - 1, size - 6, size - 9}):
        before = flip(damaged, at_byte)
        found = verified(cli, CHESS, "--deep", code=1)[CHESS]
        assert kinds(found) == ["damaged"], at_byte
        evidence = found["findings"][0]["evidence"]
        assert damaged.name in evidence
        assert "10 rows of batch 1" in evidence
        damaged.write_bytes(before)
    assert kinds(verified(cli, CHESS, "--deep", code=0)[CHESS]) == []


def test_other_tables_are_verified_all_the_same(cli: Cli, games: SettledLake) -> None:
    flip(live_files(games.lake / CHESS)[1], 50)
    tables = verified(cli, "--all", "--deep", code=1)
    assert {name: kinds(table) for name, table in tables.items()} == {
        CHESS: ["damaged"],
        GO: [],
        BRONZE: [],
        LETTERS: [],
    }


def test_a_table_goes_on_without_a_damaged_file(cli: Cli, games: SettledLake) -> None:
    damaged = live_files(games.lake / CHESS)[1]
    unreadable(damaged)
    damaged.rename(games.root / "away.parquet")
    DeltaTable(games.lake / CHESS).repair()
    assert cli("reset", games.file, "--table", CHESS, "--yes").code == 0
    verified(cli, "--all", "--deep", code=0)


def test_damaged_bronze_and_letters_do_not_hide_other_tables(cli: Cli, games: SettledLake) -> None:
    unreadable(live_files(games.lake / BRONZE)[0])
    unreadable(live_files(games.lake / LETTERS)[0])
    tables = verified(cli, "--all", "--deep", code=1)
    assert kinds(tables[BRONZE]) == kinds(tables[LETTERS]) == ["damaged"]
    # and nobody says that records are lost which cannot be looked for
    assert kinds(tables[CHESS]) == kinds(tables[GO]) == []
    assert any("damaged" in note for note in tables[CHESS]["notes"])
    assert kinds(verified(cli, CHESS, "--deep", code=0)[CHESS]) == []


def test_damaged_letters_are_not_taken_for_lost_records(cli: Cli, games: SettledLake) -> None:
    unreadable(live_files(games.lake / LETTERS)[0])
    assert kinds(verified(cli, CHESS, "--deep", code=0)[CHESS]) == []


def test_files_without_a_checksum_are_read_in_full(cli: Cli, games: SettledLake) -> None:
    DeltaTable(games.lake / CHESS).optimize.compact()
    found = verified(cli, CHESS, "--deep", code=0)[CHESS]
    assert any("without a checksum: 1" in note for note in found["notes"])
    (path,) = (Path(uri) for uri in DeltaTable(games.lake / CHESS).file_uris())
    # the column that no comparison asks for
    flip(path, pages(path)[0] + 2)
    assert kinds(verified(cli, CHESS, "--deep", code=1)[CHESS]) == ["damaged"]


def test_plain_parquet_tables(cli: Cli, own_folder: Path) -> None:
    lake = SettledLake(own_folder, format="parquet")
    lake.batch({"chess": 10})
    found = verified(cli, CHESS, "--deep", code=0)[CHESS]
    # the file from which readers take the columns has no rows, and no commit
    assert any("without a checksum: 1" in note for note in found["notes"])
    part = next((lake.lake / CHESS).glob("part-*.parquet"))
    flip(part, pages(part)[0])
    assert kinds(verified(cli, CHESS, "--deep", code=1)[CHESS]) == ["damaged"]
    unreadable(part)
    tables = verified(cli, "--all", code=1)
    assert kinds(tables[CHESS]) == ["damaged"]
    assert part.name in tables[CHESS]["findings"][0]["evidence"]


@pytest.mark.parametrize(
    "words", [("query", f"select max(move) from {CHESS}"), ("head", CHESS)], ids=lambda w: w[0]
)
def test_readers_name_the_file(cli: Cli, games: SettledLake, words: tuple[str, ...]) -> None:
    damaged = live_files(games.lake / CHESS)[1]
    unreadable(damaged)
    said = cli(*words, "--json")
    assert said.code == 1
    assert said.json["error"]["code"] == ErrorCode.DATA_FILE_DAMAGED
    assert said.json["error"]["where"] == str(damaged)
    assert f"verify {CHESS} --deep" in said.json["error"]["next_step"]


def test_maintenance_does_not_carry_damage_into_new_files(games: SettledLake) -> None:
    for path in live_files(games.lake / CHESS):
        flip(path, path.read_bytes().index(b"e4"))
    state = load(at(games.lake / CHESS))
    assert state is not None
    before = sorted((games.lake / CHESS).glob("*.parquet"))
    with pytest.raises(DamagedFileError) as raised:
        compact(state, Sizes(target=2**20, min_files=2))
    assert raised.value.where == str(live_files(games.lake / CHESS)[0])
    assert sorted((games.lake / CHESS).glob("*.parquet")) == before


def tags(folder: Path) -> list[str | None]:
    state = load(at(folder))
    assert state is not None
    return [file.checksum for file in state.files.values()]


def test_checksums_stay_with_their_files(cli: Cli, games: SettledLake) -> None:
    before = tags(games.lake / CHESS)
    assert None not in before
    # a checkpoint of another engine
    DeltaTable(games.lake / CHESS).create_checkpoint()
    for commit in games.commits(CHESS):
        commit.unlink()
    assert sorted(map(str, tags(games.lake / CHESS))) == sorted(map(str, before))
    state = load(at(games.lake / CHESS))
    assert state is not None
    compact(state, Sizes(target=2**20, min_files=2))
    assert len(tags(games.lake / CHESS)) == 1
    assert None not in tags(games.lake / CHESS)
    assert kinds(verified(cli, CHESS, "--deep", code=0)[CHESS]) == []


def test_a_large_file_is_checked_while_it_is_read(tmp_path: Path) -> None:
    rows = pa.table({"a": range(100_000)})
    file = write_file(rows, str(tmp_path), "large.parquet")
    add = {
        "path": file.path,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": file.stats,
        "tags": {TAG: file.checksum},
    }
    write_deltalake(tmp_path, rows.schema.empty_table())
    newest = tmp_path / "_delta_log" / f"{1:020d}.json"
    newest.write_text(json.dumps({"add": add}))
    state = load(at(tmp_path))
    assert state is not None
    assert state.rows(rows.schema).num_rows == 100_000
    flip(tmp_path / file.path, file.size // 2)
    with pytest.raises(DamagedFileError):
        state.rows(rows.schema)


@pytest.fixture
def shop(own_folder: Path) -> ChangeLake:
    lake = ChangeLake(own_folder)
    lake.batch([event(n, "insert", id=n, region="north", price=1.5) for n in range(1, 6)])
    return lake


def damaged_in(table: dict[str, Any]) -> dict[str, str]:
    (finding,) = (each for each in table["findings"] if each["kind"] == "damaged")
    return dict(finding)


@pytest.mark.parametrize("deep", [("--deep",), ()], ids=["deep", "plain"])
def test_a_merged_table_is_rebuilt(cli: Cli, shop: ChangeLake, deep: tuple[str, ...]) -> None:
    rows = shop.rows()
    unreadable(live_files(shop.lake / MERGED)[-1])
    tables = verified(cli, "--all", *deep, code=1)
    assert damaged_in(tables[MERGED])["next_step"].startswith(f"`distributary rebuild {MERGED}`")
    assert kinds(tables[LOG]) == []
    assert cli("rebuild", MERGED).code == 0
    verified(cli, "--all", "--deep", code=0)
    assert shop.rows() == rows


def test_a_damaged_log_is_named_and_nothing_is_made_of_it(cli: Cli, shop: ChangeLake) -> None:
    rows, (path,) = shop.rows(), live_files(shop.lake / LOG)
    unreadable(path)
    tables = verified(cli, "--all", code=1)
    assert str(path) in damaged_in(tables[MERGED])["evidence"]
    refused = cli("rebuild", MERGED, "--json")
    assert refused.code == 1
    assert refused.json["error"]["code"] == ErrorCode.DATA_FILE_DAMAGED
    assert refused.json["error"]["where"] == str(path)
    assert shop.rows() == rows


def test_a_damaged_checkpoint_of_a_log_is_named_and_can_go(cli: Cli, games: SettledLake) -> None:
    DeltaTable(games.lake / CHESS).create_checkpoint()
    (log,) = (games.lake / CHESS / "_delta_log").glob("*.checkpoint.parquet")
    log.write_bytes(b"")
    found = verified(cli, CHESS, code=1)[CHESS]
    assert kinds(found) == ["damaged"]
    (finding,) = found["findings"]
    assert str(log) in finding["evidence"]
    assert "remove it" in finding["next_step"]
    log.unlink()
    log.with_name("_last_checkpoint").unlink()
    verified(cli, CHESS, code=0)


def test_a_checkpoint_of_others_that_says_another_thing_is_named(
    cli: Cli, games: SettledLake
) -> None:
    DeltaTable(games.lake / CHESS).create_checkpoint()
    (log,) = (games.lake / CHESS / "_delta_log").glob("*.checkpoint.parquet")
    verified(cli, CHESS, "--deep", code=0)
    rows = pq.read_table(log)
    marks = [{**txn, "version": txn["version"] + 7} if txn else None for txn in taken(rows, "txn")]
    place = rows.column_names.index("txn")
    pq.write_table(rows.set_column(place, "txn", pa.array(marks, rows.schema.types[place])), log)
    found = verified(cli, CHESS, "--deep", code=1)[CHESS]
    (finding,) = found["findings"]
    assert finding["what"] == "a checkpoint of its log is damaged"
    assert str(log) in finding["evidence"]
    log.unlink()
    log.with_name("_last_checkpoint").unlink()
    verified(cli, CHESS, "--deep", code=0)


def taken(rows: pa.Table, column: str) -> list[dict[str, Any] | None]:
    return rows[column].to_pylist()


def test_a_damaged_commit_is_named_with_the_ways_out(cli: Cli, games: SettledLake) -> None:
    commit = games.commits(CHESS)[1]
    before = flip(commit, commit.read_bytes().index(b"numRecords") + 14)
    found = verified(cli, CHESS, code=1)[CHESS]
    assert kinds(found) == ["unreadable"]
    (finding,) = found["findings"]
    assert str(commit) in finding["evidence"]
    assert TAG in finding["next_step"]
    assert f"reset {games.file} --table {CHESS}" in finding["next_step"]
    refused = cli("reset", games.file, "--table", CHESS, "--yes")
    assert refused.code == 1
    # as the message says: somebody has looked at the commit
    commit.write_bytes(before)
    edit_commit(commit, lambda text: text)
    verified(cli, "--all", "--deep", code=0)
    # or the table goes
    flip(commit, 300)
    (games.lake / CHESS).rename(games.root / "away")
    assert cli("reset", games.file, "--table", CHESS, "--yes").code == 0
    verified(cli, "--all", code=0)
