"""A file of the ledger is damaged or gone: `recover` writes what it held again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.cli.command_line import main
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.accounts import mend_ledger
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.errors import DamagedFileError, LakeUnavailableError
from distributary.model.manifest import Manifest, SchemaUse
from distributary.store.base import at
from tests.lakes.settled import SettledLake, live_files

_OTHERWISE = ("at", "since", "outcome", "version", "started_at", "finished_at", "error")
"""When a batch ended is not in its manifest, nor which version each table had then."""


class DecidedLake(SettledLake):
    """A lake whose manifests are in its checkpoint."""

    def settle(self, manifest: Manifest, *args: Any, **options: Any) -> None:
        place = at(str(self.checkpoint))
        Checkpoint.begin(place, pipeline=self.name, life=self.life)
        manifests = Checkpoint(place, self.life).manifests()
        manifests.create(manifest)
        super().settle(manifest, *args, **options)
        manifests.settle(manifest.batch)

    def ledger_files(self, table: str) -> list[Path]:
        return live_files(self.lake / "_distributary/ledger" / table)

    def ledger_rows(self, table: str) -> list[dict[str, Any]]:
        rows = DeltaTable(self.lake / "_distributary/ledger" / table).to_pyarrow_table()
        names = [name for name in rows.column_names if name not in _OTHERWISE]
        return sorted(rows.select(names).to_pylist(), key=repr)


@pytest.fixture
def lake(tmp_path: Path) -> DecidedLake:
    lake = DecidedLake(tmp_path)
    lake.batch({"chess": 3, "go": 2})
    lake.batch({"chess": 4}, letters=1, parked=["silver_chess"])
    lake.batch({"chess": 1, "go": 1}, parked=["silver_chess"])
    lake.batch({"go": 1})
    return lake


def _flip(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:40] + bytes(len(data) - 40))


@pytest.mark.parametrize(
    ("table", "number", "spoil"),
    [
        ("batches", 0, _flip),
        ("tables", 1, _flip),
        ("batches", 1, Path.unlink),
        ("tables", 3, Path.unlink),
    ],
)
def test_what_a_file_held_is_written_again(
    lake: DecidedLake, table: str, number: int, spoil: Callable[[Path], None]
) -> None:
    before = lake.ledger_rows(table)
    totals, commits = lake.ledger.totals("games"), lake.ledger.tables()
    spoil(lake.ledger_files(table)[number])
    with pytest.raises(DamagedFileError) as caught:
        (lake.ledger.totals("games"), lake.ledger.tables())
    assert "`distributary recover FILE`" in caught.value.next_step
    pipeline = Pipeline.load(lake.file)
    assert [repair.batches for repair in mend_ledger(pipeline, dry_run=True)] == [(number,)]
    assert [repair.batches for repair in mend_ledger(pipeline)] == [(number,)]
    assert mend_ledger(pipeline) == []
    assert lake.ledger_rows(table) == before
    assert lake.ledger.totals("games") == totals
    assert [(t.table, t.rows, t.parked_batches) for t in lake.ledger.tables()] == [
        (t.table, t.rows, t.parked_batches) for t in commits
    ]


def test_a_table_that_was_resumed_is_not_counted_twice(lake: DecidedLake) -> None:
    lake.resume("silver_chess")
    before = {t.table: t.rows for t in lake.ledger.tables()}
    for table in ("tables", "batches"):
        _flip(lake.ledger_files(table)[1])
    assert len(mend_ledger(Pipeline.load(lake.file))) == 2
    assert {t.table: t.rows for t in lake.ledger.tables()} == before
    assert lake.ledger.totals("games").parked == 0


def test_the_history_of_schemas_is_written_again(tmp_path: Path) -> None:
    class SchemaLake(DecidedLake):
        def _manifest(self, *args: Any, **options: Any) -> Manifest:
            use = SchemaUse("chess", "silver_chess", 7, "chess-value, version 1", ())
            return replace(super()._manifest(*args, **options), schemas=(use,))

    lake = SchemaLake(tmp_path)
    for _ in range(3):
        lake.batch({"chess": 1})
    before = lake.ledger_rows("schemas")
    lake.ledger_files("schemas")[1].unlink()
    assert [(r.table, r.rows) for r in mend_ledger(Pipeline.load(lake.file))] == [("schemas", 1)]
    assert lake.ledger_rows("schemas") == before


def test_rows_that_no_manifest_knows_are_not_guessed(lake: DecidedLake) -> None:
    manifests = Checkpoint(at(str(lake.checkpoint)), lake.life).manifests()
    manifests.prune(keep=1)
    _flip(lake.ledger_files("tables")[0])
    before = DeltaTable(lake.lake / "_distributary/ledger/tables").version()
    with pytest.raises(DamagedFileError) as caught:
        mend_ledger(Pipeline.load(lake.file))
    assert "recover" not in caught.value.next_step
    assert DeltaTable(lake.lake / "_distributary/ledger/tables").version() == before


def test_rows_of_another_lane_are_not_taken_for_those_of_the_stream(lake: DecidedLake) -> None:
    SettledLake(lake.root, life="life0", batches=3).batch({"go": 9, "darts": 1})
    _flip(lake.ledger_files("tables")[-1])
    with pytest.raises(DamagedFileError):
        mend_ledger(Pipeline.load(lake.file))


def test_the_command_says_what_it_wrote(
    lake: DecidedLake, capsys: pytest.CaptureFixture[str]
) -> None:
    _flip(lake.ledger_files("tables")[2])
    assert main(["recover", str(lake.file), "--json"]) == 0
    (repair,) = json.loads(capsys.readouterr().out)["ledger"]
    assert (repair["table"], repair["batches"], repair["rows"]) == ("tables", [2], 3)
    assert main(["recover", str(lake.file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ledger"] == []


@pytest.mark.parametrize("table", ["batches", "tables"])
def test_a_log_of_the_ledger_that_is_broken_is_named_with_the_way_out(
    lake: DecidedLake, table: str
) -> None:
    ledger = lake.lake / "_distributary/ledger"
    _flip(lake.ledger_files("batches")[1])
    (ledger / table / f"_delta_log/{1:020d}.json").write_bytes(b"")
    with pytest.raises(LakeUnavailableError) as caught:
        mend_ledger(Pipeline.load(lake.file))
    assert caught.value.where == str(ledger / table)
    assert "_delta_log" in caught.value.next_step
