import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from distributary.engine.planning.table_names import Entries, NameEntry
from distributary.engine.progress.claim import Claim
from distributary.errors import LakeUnavailableError, SourceUnavailableError
from distributary.model.deadletter import dead_letter_id
from distributary.observe.cards import registrations
from distributary.observe.status.pulse import (
    HeldRecords,
    Pulse,
    Trouble,
    UnderWay,
    write_failure,
    write_pulse,
)
from distributary.registry.folder import FileRegistry
from distributary.store.base import at as store_at
from tests.cli.conftest import Cli
from tests.lakes.written import HOSTILE, make_lake, pin_file

ID = dead_letter_id("games", "life", "wrapper", 0, 20)


@pytest.fixture
def lake(own_folder: Path) -> Path:
    return make_lake(own_folder / "lake")


def test_the_lake_is_found_in_the_usual_places(
    own_folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = cli("tables")
    assert missing.code == 2
    assert missing.err.startswith("NOT_FOUND")
    demo = make_lake(own_folder / "distributary-demo")
    assert cli("tables", "--json").json["lake"] == str(demo)
    usual = make_lake(own_folder / "lake")
    assert cli("tables", "--json").json["lake"] == str(usual)
    monkeypatch.chdir(demo)
    assert cli("tables", "--json").json["lake"] == str(demo)
    monkeypatch.chdir(own_folder)
    named = make_lake(own_folder / "named")
    monkeypatch.setenv("DISTRIBUTARY_LAKE", "named")
    assert cli("tables", "--json").json["lake"] == str(named)
    assert cli("tables", "--json", "--lake", demo).json["lake"] == str(demo)
    assert "--lake" in cli("tables", "-v", "--lake", demo).err


def test_a_folder_that_is_no_lake_is_named(own_folder: Path, cli: Cli) -> None:
    (own_folder / "other").mkdir()
    result = cli("status", "--lake", "other")
    assert result.code == 2
    assert "NOT_FOUND" in result.err
    assert str(own_folder / "other") in result.err


def test_status_says_how_it_stands(lake: Path, cli: Cli) -> None:
    text = cli("status").out
    assert "read 23 = written 20 + dead letters 3 + parked 0" in text
    assert "UNKNOWN_SCHEMA_ID 2" in text
    assert "5 behind" in text
    document = cli("status", "--json").json
    assert document["version"] == 1
    (pipeline,) = document["pipelines"]
    assert pipeline["name"] == "games"
    assert pipeline["totals"]["read"] == 23
    assert pipeline["dead_letters"]["by_status"]["open"] == 3
    # its file is gone, so nobody can tell
    assert pipeline["healable"] is None


def test_status_loads_what_decodes_only_for_letters_that_may(
    lake: Path, own_folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lake / "games.yaml").write_text(FILE.format(lake=lake, name="games"))
    pin_file(lake, lake / "games.yaml")
    registry = FileRegistry(own_folder / "schemas")
    registry.register("chess", 'syntax = "proto3"; message Chess {}')
    # whoever loads it fails, and then nobody can tell
    monkeypatch.setitem(sys.modules, "distributary.operations.replay", None)
    assert cli("status", "--json").json["pipelines"][0]["healable"]["count"] == 0
    for n in range(6):
        registry.register(f"chess-{n}", f'syntax = "proto3"; message Chess{n} {{}}')
    assert cli("status", "--json").json["pipelines"][0]["healable"] is None
    assert "could not check" in cli("status").out


def test_status_says_when_and_why_a_pipeline_failed(lake: Path, cli: Cli) -> None:
    error = SourceUnavailableError("no answer", next_step="start\x1b it")
    checkpoint = lake / "_checkpoints" / "games"
    checkpoint.mkdir(parents=True, exist_ok=True)
    write_failure(store_at(checkpoint), error)
    lines = cli("status").out.splitlines()
    at = next(n for n, line in enumerate(lines) if "failed" in line)
    assert lines[at].split(maxsplit=1)[1].startswith("SOURCE_UNAVAILABLE: no answer, ")
    assert lines[at + 1].strip() == "start\\x1b it"


@pytest.fixture
def away(lake: Path, own_folder: Path) -> Path:
    """A pipeline file whose lake cannot be read and whose checkpoint can."""
    next((lake / "_distributary/ledger/batches/_delta_log").glob("*.json")).write_text("{")
    file = own_folder / "games.yaml"
    places = f"{{path: {lake}, checkpoint: {own_folder}/progress}}"
    file.write_text(
        "name: games\nsource: {type: delta, path: ./in}\npayload: {format: json}\n"
        f"tables: {{each: all}}\nlake: {places}\n"
    )
    return file


def test_a_pipeline_is_known_while_its_lake_is_not(away: Path, cli: Cli) -> None:
    assert cli("status").err.startswith("LAKE_UNAVAILABLE")
    nothing = cli("status", away)
    assert (nothing.code, nothing.out.splitlines()[1].split()) == (75, ["games", "unknown"])
    store = store_at(away.parent / "progress" / "games")
    claim = Claim.take(store, lease=30.0)
    now = datetime.now(UTC)
    error = LakeUnavailableError("no answer", next_step="wait").as_dict()
    trouble = Trouble(since=now, attempts=3, next_try=None, error=error)
    write_pulse(store, Pulse(now, trouble, under_way=UnderWay(7, now, "publish")))
    try:
        text, found = cli("status", away), cli("status", away, "--json")
    finally:
        claim.release()
    assert text.code == found.code == 75
    assert "games  retrying" in text.out
    assert "LAKE_UNAVAILABLE: no answer" in text.out and "does not answer" in text.out
    assert found.json["unavailable"]["code"] == "LAKE_UNAVAILABLE"
    (pipeline,) = found.json["pipelines"]
    assert (pipeline["state"], pipeline["failure"]["attempts"]) == ("retrying", 3)
    assert pipeline["under_way"]["batch"] == 7


def test_status_shows_the_records_that_are_held_back(lake: Path, cli: Cli) -> None:
    assert "held back" not in cli("status").out
    store = store_at(registrations(str(lake))[0].checkpoint)
    held = HeldRecords(3, 2, "evil\x1b[31m", datetime.now(UTC) - timedelta(minutes=5))
    write_pulse(store, Pulse(datetime.now(UTC), held=held))
    (line,) = (line for line in cli("status").out.splitlines() if "held back" in line)
    assert "3 records of 2 transactions that did not come completely, the oldest from" in line
    assert cli("status", "--json").json["pipelines"][0]["held"]["transactions"] == 2


def test_a_folder_that_is_gone_is_not_a_lake_that_never_was(
    away: Path, lake: Path, cli: Cli
) -> None:
    lake.rename(lake.with_name("unmounted"))
    never = cli("status", away)
    assert never.code == 2 and never.err.startswith("NOT_FOUND")
    (away.parent / "progress" / "games").mkdir(parents=True)
    gone = cli("status", away)
    assert gone.code == 75 and "not there" in gone.out


def test_an_error_names_the_page_that_the_pipeline_file_names(away: Path, cli: Cli) -> None:
    with away.open("a") as file:
        file.write("alerts: {dashboard_url: 'https://page.example:8500/'}\n")
    refused = cli("clean", away)
    assert "page  https://page.example:8500/errors/" in refused.err


def test_commands_to_type_next_name_a_lake_that_was_named(own_folder: Path, cli: Cli) -> None:
    make_lake(own_folder / "lake", parked=["silver_0"])
    elsewhere = make_lake(own_folder / "my lake", parked=["silver_0"])
    for words in (("status",), ("dlq", "list"), ("dlq", "show", ID), ("trace", "wrapper/0/20")):
        assert " --lake" not in cli(*words).out
        assert f" --lake '{elsewhere}'\n" in cli(*words, "--lake", elsewhere).out


def test_status_names_parked_tables_and_the_way_out(own_folder: Path, cli: Cli) -> None:
    make_lake(own_folder / "lake", parked=["silver_0"])
    text = cli("status").out
    assert "distributary resume silver_0" in text
    assert "parked 10" in text
    assert "\x1b" not in text


def test_a_thousand_tables_do_not_flood_the_screen(own_folder: Path, cli: Cli) -> None:
    make_lake(own_folder / "lake", types=[f"type_{n}" for n in range(40)], letters=[])
    lines = cli("status").out.splitlines()
    assert len(lines) < 30
    assert lines[-1].strip() == "and 25 healthy"


def test_status_of_a_file_is_about_its_pipeline(own_folder: Path, cli: Cli) -> None:
    lake = make_lake(own_folder / "elsewhere")
    file = own_folder / "games.yaml"
    file.write_text(FILE.format(lake=lake, name="games"))
    assert len(cli("status", file, "--json").json["pipelines"]) == 1
    file.write_text(FILE.format(lake=lake, name="others"))
    assert cli("status", file, "--json").json["pipelines"] == []


FILE = """
name: {name}
source: {{type: delta, path: ./wrapper, value: wrapper}}
registry: {{path: ./schemas}}
envelope: {{format: protobuf, subject: wrapper-value, type: game_name}}
payload: {{format: protobuf}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: {lake}}}
"""


def test_tables_name_the_types_that_claim_one_name(lake: Path, cli: Cli) -> None:
    assert cli("tables", "--json").json["clashes"] == []
    entries, second = Entries(str(lake)), "silver_0_x0123456789"
    entries.take("silver_0", NameEntry({"type": "chess"}, ("silver_0",)))
    entries.take(second, NameEntry({"type": HOSTILE}, (second,), instead_of="silver_0"))
    entries.take("other_x0123456789", NameEntry({"type": "x"}, ("other",), instead_of="elsewhere"))
    (clash,) = cli("tables", "--json").json["clashes"]
    assert clash == {
        "name": "silver_0",
        "owner": "chess",
        "claimed_by": HOSTILE,
        "table": second,
    }
    text = cli("tables").out
    assert "silver_0 of chess is also claimed by" in text and second in text
    assert "\x1b" not in text


def test_tables(lake: Path, cli: Cli) -> None:
    document = cli("tables", "--json").json
    assert [t["table"] for t in document["tables"]] == ["dead_letters", "silver_0", "silver_1"]
    text = cli("tables").out
    assert "3 tables, 20 rows, 3 dead letters" in text
    # as `status` counts them
    assert cli("status", "--json").json["pipelines"][0]["rows"] == 20
    assert "evil\\x1b[31m[bold]\\u202egame" in text
    assert cli("tables", "--json", "--pipeline", "other").json["tables"] == []


def test_schema_show_by_table_and_by_type(lake: Path, cli: Cli) -> None:
    by_table = cli("schema", "show", "silver_0", "--json").json
    assert by_table == cli("schema", "show", "chess", "--json").json
    assert [c["name"] for c in by_table["columns"]] == ["move", "_offset", "_topic", "_partition"]
    assert by_table["columns"][0]["type"] == "string"
    assert "bigint" in cli("schema", "show", "chess").out
    missing = cli("schema", "show", "ches")
    assert missing.code == 2
    assert "did you mean chess" in missing.err


def test_schema_history(lake: Path, cli: Cli) -> None:
    document = cli("schema", "history", "chess", "--json").json
    assert [row["text"] for row in document["history"]] == ["+ table (move string)", "+ rating int"]
    assert document["history"][0]["at"] == "2026-01-31T12:00:00.000Z"
    assert "chess-value v3" in cli("schema", "history").out
    assert cli("schema", "history", "--last", 1, "--json").json["total"] == 4
    assert cli("schema", "history", "nothing").code == 2


def test_trace_a_record_to_its_row_and_back(lake: Path, cli: Cli) -> None:
    unread = cli("trace", "wrapper/0/500", "--json")
    assert unread.code == 1
    assert unread.json["verdict"] == "not_read"
    dead = cli("trace", "wrapper/0/20")
    assert dead.code == 0
    assert "dlq show" in dead.out
    rows = cli("trace", "silver_0", "_offset=4", "--json").json["rows"]
    assert rows[0]["source"] == {"topic": "wrapper", "partition": 0, "offset": 4}
    assert "wrapper/0/4" in cli("trace", "silver_0", "_offset=4").out
    assert cli("trace", "silver_0", "_offset=77").code == 1


@pytest.mark.parametrize("words", [["wrapper"], ["wrapper/x/1"], ["a/0/-1"], ["silver_0", "x"]])
def test_trace_of_nonsense_is_wrong_usage(lake: Path, cli: Cli, words: list[str]) -> None:
    assert cli("trace", *words).code == 2


def test_hostile_names_stay_text_everywhere(lake: Path, cli: Cli) -> None:
    lines = [
        ("status",),
        ("tables",),
        ("schema", "history"),
        ("schema", "show", HOSTILE),
        ("dlq", "list", "--status", "all"),
        ("trace", "wrapper/0/20"),
    ]
    for line in lines:
        for more in ((), ("--json",)):
            result = cli(*line, *more)
            assert result.code == 0, (line, result.err)
            assert "\x1b" not in result.out + result.err
            assert "\u202e" not in result.out + result.err


def test_json_survives_warnings_and_nobody_starts_java(lake: Path) -> None:
    code = (
        "import subprocess\n"
        "def refuse(*args, **kwargs): raise AssertionError(args)\n"
        "subprocess.Popen.__init__ = refuse\n"
        "from distributary.cli import main\n"
        "for words in ('status', 'tables', 'schema history', 'dlq list'):\n"
        "    assert main([*words.split(), '--json']) == 0, words\n"
        "    print('\\0', end='')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    *documents, rest = ended.stdout.split("\0")
    assert (len(documents), rest) == (4, "")
    assert all(json.loads(document)["version"] == 1 for document in documents)


def test_a_reader_who_has_read_enough_is_no_error(lake: Path) -> None:
    command = [sys.executable, "-m", "distributary", "tables"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 1
