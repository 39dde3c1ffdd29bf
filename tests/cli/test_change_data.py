"""`verify`, `rebuild`, `trace`, `status` and `tables` over change data, without Spark."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.cli.doctor import _order as order_check
from distributary.config.load import load
from distributary.engine.progress.recovery import refuse_behind
from distributary.errors import TableBehindError
from distributary.model.check import Check, CheckState
from tests.changes.logs import NOW, event
from tests.cli.conftest import Cli
from tests.lakes.written import make_lake, pin_file
from tests.lakes.written_changes import BEGUN, LOG, MERGED, NAME, TYPE, ChangeLake

MS = NOW // 1000


@pytest.fixture
def shop(own_folder: Path) -> ChangeLake:
    shop = ChangeLake(own_folder)
    shop.batch([event(MS + n, "insert", id=n, region="north", price=1.0 * n) for n in range(1, 6)])
    shop.batch([event(MS + 10_000, "update", id=2, region="\x1b[31mred", price=20.0)])
    shop.batch([event(MS + 20_000, "delete", id=5)])
    return shop


def test_verify_agrees_or_says_what_differs(cli: Cli, shop: ChangeLake) -> None:
    agreed = cli("verify", MERGED, "--json")
    assert (agreed.code, agreed.json["agree"], agreed.json["version"]) == (0, True, 1)
    (table,) = agreed.json["tables"]
    assert table["compared"] == ["marks", "files", "values, by its log"]
    assert (table["rows"], table["rows_by_log"], table["log"]) == (4, 4, LOG)

    shop.spoil(price=77.0)
    found = cli("verify", "--all", "--json")
    assert (found.code, found.json["agree"]) == (1, False)
    table, log = found.json["tables"]
    assert (log["table"], log["agrees"], log["rows"], log["rows_by_ledger"]) == (LOG, True, 7, 7)
    assert (table["missing"], table["extra"], table["different"]) == (0, 0, 1)
    (difference,) = table["differences"]
    assert difference == {"key": '{"id":1}', "column": "price", "expected": "1.0", "found": "77.0"}
    text = cli("verify", "--all")
    assert text.code == 1
    assert f"distributary rebuild {MERGED}\n" in text.out
    named = cli("verify", "--all", "--lake", shop.lake)
    assert f"distributary rebuild {MERGED} --lake {shop.lake}\n" in named.out


def test_a_merged_table_at_a_cut_is_compared_with_its_log_of_the_cut(
    cli: Cli, shop: ChangeLake
) -> None:
    shop.spoil(price=77.0)
    # only the newest version is wrong
    found = cli("verify", "--all", "--as-of", "1", "--json")
    assert (found.code, found.json["agree"]) == (0, True)
    tables = {table["table"]: table for table in found.json["tables"]}
    assert (tables[MERGED]["rows"], tables[MERGED]["rows_by_log"]) == (5, 5)
    assert tables[LOG]["rows"] == 6
    assert cli("verify", MERGED).code == 1


def test_a_table_that_is_not_there_is_wrong_usage_everywhere(cli: Cli, shop: ChangeLake) -> None:
    assert cli("verify", "nothing").code == cli("trace", "nothing", "id=1").code == 2
    assert cli("trace", MERGED, "nothing=1").code == 2


def test_rebuild_makes_it_what_the_log_says_and_touches_nothing_else(
    cli: Cli, shop: ChangeLake
) -> None:
    before = shop.rows()
    log = DeltaTable(shop.lake / LOG).version()
    shop.spoil(id=99)
    planned = cli("rebuild", MERGED, "--dry-run", "--json").json
    assert (planned["added"], planned["removed"], planned["changed"]) == (1, 1, 0)
    assert cli("verify", "--all").code == 1
    done = cli("rebuild", MERGED, "--json")
    assert (done.code, done.json["rows"], done.json["by_running_pipeline"]) == (0, 4, False)
    assert shop.rows() == before
    assert DeltaTable(shop.lake / LOG).version() == log
    assert cli("verify", MERGED).code == 0


def test_rebuild_as_of_a_moment_and_back(cli: Cli, shop: ChangeLake) -> None:
    then = (BEGUN + timedelta(seconds=5)).isoformat()
    past = cli("rebuild", MERGED, "--as-of", then)
    assert past.code == 0
    assert "warning" in past.err
    assert [(row["id"], row["price"]) for row in shop.rows()] == [(n, 1.0 * n) for n in range(1, 6)]
    assert cli("verify", MERGED, "--as-of", then).code == 0
    assert cli("verify", MERGED).code == 1
    assert cli("rebuild", MERGED).code == 0
    assert cli("verify", MERGED).code == 0


@pytest.mark.parametrize(
    "line",
    [
        ("verify",),
        ("verify", MERGED, "--all"),
        ("verify", "nothing"),
        ("verify", LOG, "--as-of", "2026-11-15T12:00:00Z"),
        ("rebuild", LOG),
        ("rebuild", "nothing"),
        ("rebuild", MERGED, "--as-of", "yesterday"),
    ],
)
def test_what_cannot_be_done_is_refused(cli: Cli, shop: ChangeLake, line: tuple[str, ...]) -> None:
    result = cli(*line, "--json")
    assert result.code == 2
    assert result.json["error"]["code"] in ("CONFIG_INVALID", "NOT_FOUND")
    assert result.json["error"]["next_step"]


def test_without_a_log_there_is_nothing_to_compute_from(cli: Cli, shop: ChangeLake) -> None:
    text = shop.file.read_text().replace("format: datastream}", "format: datastream, log: false}")
    shop.file.write_text(text)
    pin_file(shop.lake, shop.file, name=NAME)
    for verb in ("rebuild", "verify"):
        result = cli(verb, MERGED, "--json")
        assert (result.code, result.json["error"]["where"]) == (2, "cdc.log")
    # with all others it is looked at as far as that goes
    merged, log = cli("verify", "--all", "--json").json["tables"]
    assert (merged["agrees"], log["agrees"], len(merged["notes"])) == (True, True, 1)


def test_a_merged_table_that_is_gone_is_rebuilt_and_counts_again(
    cli: Cli, shop: ChangeLake
) -> None:
    ledger, config = shop.ledger, load(shop.file).config
    refuse_behind(config, ledger, "life1")
    shutil.rmtree(shop.lake / MERGED)
    with pytest.raises(TableBehindError) as caught:
        refuse_behind(config, ledger, "life1")
    assert f"distributary rebuild {MERGED}" in caught.value.next_step
    found = cli("verify", MERGED, "--json")
    assert (found.code, found.json["tables"][0]["findings"][0]["kind"]) == (1, "missing")
    assert cli("status", "--json").json["pipelines"][0]["tables"]["missing"] == 1
    assert cli("rebuild", MERGED).code == 0
    refuse_behind(config, ledger, "life1")
    assert cli("verify", "--all").code == 0
    assert cli("status", "--json").json["pipelines"][0]["tables"]["missing"] == 0
    shop.batch([event(MS + 30_000, "insert", id=9)])
    refuse_behind(config, ledger, "life1")


def test_a_log_that_is_behind_is_refused(cli: Cli, shop: ChangeLake) -> None:
    newest = sorted((shop.lake / LOG / "_delta_log").glob("*.json"))[-1]
    newest.write_text("")
    with pytest.raises(TableBehindError) as caught:
        refuse_behind(load(shop.file).config, shop.ledger, "life1")
    assert caught.value.context["tables"] == LOG
    assert cli("reset", shop.file, "--table", LOG, "--dry-run", "--json").json["difference"] == -1
    assert cli("reset", shop.file, "--table", LOG).code == 2
    assert cli("reset", shop.file, "--table", "nothing", "--yes").code == 2
    assert cli("reset", shop.file, "--table", LOG, "--with-tables", "--yes").code == 2
    assert cli("reset", shop.file, "--table", LOG, "--yes").code == 0
    refuse_behind(load(shop.file).config, shop.ledger, "life1")
    assert cli("verify", LOG).code == 0


def test_a_parked_table_differs_and_resume_is_the_way(cli: Cli, shop: ChangeLake) -> None:
    shop.batch([event(MS + 30_000, "insert", id=8)], parked=True)
    result = cli("verify", MERGED)
    assert result.code == 1
    assert f"distributary resume {MERGED}" in result.out
    assert cli("verify", MERGED, "--json").json["tables"][0]["parked_batches"] == 1


def test_status_and_tables_tell_of_changes(cli: Cli, shop: ChangeLake) -> None:
    document = cli("status", "--json").json
    changes = document["pipelines"][0]["changes"]
    assert changes["changes"] == {"insert": 5, "update": 1, "delete": 1, "read": 0, "truncate": 0}
    (table,) = changes["shown"]
    assert (table["type"], table["table"], table["rows"], table["events"]) == (TYPE, MERGED, 4, 7)
    assert table["last_event"].startswith((BEGUN + timedelta(seconds=20)).isoformat()[:19])
    assert table["lag_seconds"] == 160.0
    text = cli("status").out
    assert "insert 5, update 1, delete 1" in text
    assert "160 s" not in text and "2.7 min" in text

    rows = {t["table"]: (t["role"], t["rows"]) for t in cli("tables", "--json").json["tables"]}
    assert rows == {MERGED: ("merged", 4), LOG: ("log", 7)}
    assert "shop.orders" in cli("tables").out
    assert cli("schema", "show", "shop.orders").code == 0


def test_trace_tells_the_story_of_a_row(cli: Cli, shop: ChangeLake) -> None:
    text = cli("trace", MERGED, "2")
    assert text.code == 0
    assert "\x1b" not in text.out
    told = [line.split() for line in text.out.splitlines() if " batch " in line]
    assert ["insert" in words for words in told] == [True, False]
    assert told[1][0] == ">"
    (row,) = cli("trace", MERGED, "id=2", "--json").json["rows"]
    assert [event["op"] for event in row["events"]] == ["insert", "update"]
    assert row["row"]["price"] == 20.0
    gone = cli("trace", MERGED, "5")
    assert "the row is gone" in gone.out
    assert cli("trace", MERGED, "4711").code == 1
    assert cli("trace", MERGED, "1", "2").code == 2
    # a log is a table like others
    assert cli("trace", LOG, "_offset=0").code == 0


FILES = ("shop_orders/2026/11/15/12/00/a.avro", "shop_orders/2026/11/15/12/01/b.avro")


@pytest.fixture
def from_files(own_folder: Path) -> ChangeLake:
    shop = ChangeLake(own_folder)
    rows = [event(MS + n, "insert", id=n, region="north", price=1.0 * n) for n in range(1, 4)]
    shop.batch(rows, file=FILES[0])
    later = [event(MS + 10_000, id=2, price=20.0), event(MS + 10_001, "delete", id=3)]
    shop.batch(later, file=FILES[1])
    return shop


def test_trace_leads_from_a_row_to_its_file_and_place(cli: Cli, from_files: ChangeLake) -> None:
    (row,) = cli("trace", MERGED, "1", "--json").json["rows"]
    source = row["events"][0]["source"]
    assert source == {"topic": FILES[0], "partition": 0, "offset": 0}
    where = f"{FILES[1]}/1/0"
    assert where in cli("trace", MERGED, "2").out
    back = cli("trace", where, "--json")
    assert (back.code, back.json["verdict"]) == (0, "written")
    (place,) = back.json["places"]
    assert (place["table"], place["values"]["id"]) == (LOG, 2)
    assert [batch["batch"] for batch in back.json["batches"]] == [1]
    assert cli("trace", f"{FILES[1]}/1/7").code == 1
    assert cli("trace", f"{FILES[1]}/9/0", "--json").json["verdict"] == "unknown_source"


def test_trace_leads_from_a_file_to_its_rows(
    cli: Cli, from_files: ChangeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cli("trace", FILES[0], "--json").json
    assert (found["version"], found["path"], found["events"]) == (1, FILES[0], 3)
    (table,) = found["tables"]
    assert (table["log"], table["table"], table["complete"]) == (LOG, MERGED, True)
    told = [(e["key"], e["op"], e["current"]) for e in table["events"]]
    assert told == [
        ({"id": 1}, "insert", True),
        ({"id": 2}, "insert", False),
        ({"id": 3}, "insert", False),
    ]
    text = cli("trace", FILES[1]).out
    assert "2 events in shop_orders_log, rows of shop_orders" in text
    assert text.count("> ") == 1
    # by its whole path, from where it lies, and with everything beside it
    root = from_files.root / "datastream"
    assert cli("trace", str(root / FILES[1]), "--json").json["path"] == FILES[1]
    folder = root / "shop_orders/2026/11/15/12"
    folder.mkdir(parents=True)
    lake = str(from_files.lake)
    monkeypatch.chdir(folder)
    assert cli("trace", "00/a.avro", "--lake", lake, "--json").json["events"] == 3
    assert cli("trace", "./", "--lake", lake, "--json").json["events"] == 5
    assert cli("trace", str(root), "--lake", lake, "--json").json["events"] == 5
    none = cli("trace", "shop_orders/2026/11/15/12/00/c.avro", "--lake", lake, "--json")
    assert (none.code, none.json["tables"]) == (1, [])


def test_a_lake_without_change_data_has_no_table_to_compute_as_of_a_moment(
    cli: Cli, own_folder: Path
) -> None:
    make_lake(own_folder / "lake")
    result = cli("verify", "--all", "--json", "--as-of", "2026-11-15T12:00:00Z")
    assert (result.code, result.json["tables"]) == (0, [])
    assert len(cli("verify", "--all", "--json").json["tables"]) == 3


def test_what_waited_for_a_merged_table_and_is_gone_is_in_its_log(
    cli: Cli, shop: ChangeLake
) -> None:
    shop.batch([event(MS + 30_000, "insert", id=8)], parked=True)
    shop.batch([event(MS + 31_000, "insert", id=9)], parked=True)
    config = load(shop.file).config
    with pytest.raises(TableBehindError) as caught:
        refuse_behind(config, shop.ledger, "life1")
    assert f"`distributary rebuild {MERGED}`" in caught.value.next_step
    assert "reset" not in caught.value.next_step
    assert cli("rebuild", MERGED).code == 0
    assert [row["id"] for row in shop.rows()] == [1, 2, 3, 4, 8, 9]
    refuse_behind(config, shop.ledger, "life1")
    assert cli("verify", "--all").code == 0
    # without a log there is nothing to make it of
    shop.batch([event(MS + 32_000, "insert", id=10)], parked=True)
    text = shop.file.read_text().replace("format: datastream}", "format: datastream, log: false}")
    shop.file.write_text(text)
    with pytest.raises(TableBehindError) as caught:
        refuse_behind(load(shop.file).config, shop.ledger, "life1")
    assert f"`distributary reset FILE --table {MERGED}`" in caught.value.next_step


def test_doctor_names_tables_that_were_merged_by_times(
    cli: Cli, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = ChangeLake(own_folder)
    of_mysql = '{"read_method":"mysql-cdc-binlog"}'
    monkeypatch.setattr("tests.changes.logs._envelope", lambda event: of_mysql)
    # the later one in the log has the earlier time
    shop.batch([event((1, MS + 10, 7, 1000, 0, 1, ""), "insert", id=1, price=1.0)])
    shop.batch([event((1, MS + 5, 7, 2000, 0, 1, ""), "update", id=1, price=2.0)])

    def ordered() -> Check:
        return order_check(load(shop.file))

    assert ordered().state is CheckState.WARN
    assert f"1 of 1 merged table with rows in the order of the source's times: {MERGED}" in (
        ordered().found
    )
    assert f"`distributary rebuild {MERGED}` makes it again" in ordered().fix
    DeltaTable(shop.lake / MERGED).alter.add_constraint({"placed": "_seq IS NOT NULL"})
    assert cli("rebuild", MERGED).code != 0
    assert "move the folder" in ordered().fix
    # the advice works
    (shop.lake / MERGED).rename(own_folder / "away")
    assert cli("rebuild", MERGED).code == 0
    assert [row["price"] for row in shop.rows()] == [2.0]
    assert ordered().state is CheckState.PASS

    # times are the order of sources without positions in their envelopes
    monkeypatch.setattr("tests.changes.logs._envelope", lambda event: "{}")
    other = ChangeLake(own_folder / "other")
    other.batch([event((1, MS + 10, 7, 1000, 0, 1, ""), "insert", id=1, price=1.0)])
    assert order_check(load(other.file)).state is CheckState.PASS
