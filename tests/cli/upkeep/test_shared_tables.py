"""`reset --with-tables` and `clean` of a pipeline whose tables another one writes to as well."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from distributary.engine.planning.table_names import Entries, NameEntry
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.store.base import at
from tests.cli.conftest import Cli
from tests.lakes.settled import UNIFIED, SettledLake


@pytest.fixture
def two(own_folder: Path) -> tuple[SettledLake, SettledLake]:
    one = SettledLake(own_folder, unified=True, bronze=False)
    other = SettledLake(own_folder, name="others", unified=True, bronze=False)
    one.batch({"chess": 5})
    other.batch({"shogi": 7})
    return one, other


COMMANDS = [("reset", "--with-tables"), ("clean",)]


@pytest.mark.parametrize("command", COMMANDS, ids=["reset", "clean"])
def test_tables_that_stay_are_named_and_have_to_be_confirmed(
    cli: Cli, two: tuple[SettledLake, SettledLake], command: tuple[str, ...]
) -> None:
    one, other = two
    verb, *options = command
    refused = cli(verb, one.file, *options, "--yes", "--json")
    assert refused.code == 2
    assert refused.json["error"]["code"] == "CONFIRMATION_NEEDED"
    assert UNIFIED in refused.json["error"]["evidence"]
    assert "others" in refused.json["error"]["evidence"]
    assert (one.lake / "silver_chess").exists()
    planned = cli(verb, one.file, *options, "--dry-run")
    assert planned.code == 0 and f"{UNIFIED} stays" in planned.err
    done = cli(verb, one.file, *options, "--yes", "--keep-shared")
    assert done.code == 0 and f"{UNIFIED} stays" in done.err
    assert not (one.lake / "silver_chess").exists()
    assert (one.lake / UNIFIED).exists()
    # the last one that writes to it takes it away
    last = cli(verb, other.file, *options, "--yes")
    assert last.code == 0
    assert not (one.lake / UNIFIED).exists()


def test_tables_of_one_pipeline_need_no_word(cli: Cli, own_folder: Path) -> None:
    lake = SettledLake(own_folder)
    lake.batch({"chess": 5}, letters=1)
    other = SettledLake(own_folder, name="others", bronze=False)
    # the dead letters are shared, and lose the rows of one
    other.batch({"shogi": 7}, letters=1)
    assert cli("reset", lake.file, "--with-tables", "--yes").code == 0
    assert not (lake.lake / "silver_chess").exists()


@pytest.mark.parametrize("command", COMMANDS, ids=["reset", "clean"])
@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_tables_that_an_older_ledger_lacks_go_too(
    cli: Cli, own_folder: Path, tmp_path: Path, command: tuple[str, ...], format: str
) -> None:
    lake = SettledLake(own_folder, format=format)
    Checkpoint.begin(at(str(lake.checkpoint)), pipeline=lake.name, life=lake.life)
    lake.batch({"chess": 5})
    ledger, old = lake.lake / "_distributary/ledger", tmp_path / "older"
    shutil.copytree(ledger, old)
    lake.batch({"chess": 1, "poker": 2})
    shutil.rmtree(ledger)
    shutil.copytree(old, ledger)
    entries = Entries(str(lake.lake))
    for name in ("chess", "poker", "others"):
        table = f"silver_{name}"
        entries.take(table, NameEntry({"type": name}, (table,)))
    # one that somebody else has written
    shutil.copytree(lake.lake / "silver_poker", lake.lake / "silver_others")
    log = lake.lake / "silver_others"
    for file in log.rglob("*.json"):
        file.write_text(file.read_text().replace(lake.life, "life9"))
        if format == "parquet" and file.parent.name == "log":
            file.unlink()
    verb, *options = command
    planned = cli(verb, lake.file, *options, "--dry-run", "--json").json["removals"]
    tables = {removal["table"] for removal in planned if removal["kind"] == "table"}
    assert tables == {"bronze_events", "silver_chess", "silver_poker"}
    assert cli(verb, lake.file, *options, "--yes").code == 0
    assert not (lake.lake / "silver_poker").exists()
    assert (lake.lake / "silver_others").exists()
