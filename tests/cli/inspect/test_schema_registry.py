"""Subjects, versions, differences and ids: what the schema commands say about a registry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from distributary.cli.command.verb import complete_schemas, complete_subjects
from distributary.model.record import Format
from distributary.registry.folder import FileRegistry
from tests.cli.conftest import Cli
from tests.lakes.written import make_lake, pin_file
from tests.registry.contexted import Contexted
from tests.registry.loopback import serving

V1 = """syntax = "proto3";
package game;
message Chess {
  string player = 1;
  int32 score = 2;
}
"""
V2 = V1.replace("int32 score = 2;", "int64 score = 2;\n  string move = 3;")
BROKEN = V1.replace("int32 score", "string score")
ORDER: dict[str, Any] = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "additionalProperties": False,
}
FILE = """
name: games
source: {{type: delta, path: ./wrapper, value: wrapper}}
registry: {{path: {root}/schemas}}
envelope: {{format: protobuf, subject: wrapper-value, type: game_name}}
payload: {{format: protobuf}}
tables: {{each: "silver_{{type}}"}}
lake: {{path: {root}/lake}}
"""


@pytest.fixture
def registry(own_folder: Path) -> FileRegistry:
    found = FileRegistry(own_folder / "schemas", durable=False)
    found.register("chess-value", V1)
    found.register("chess-value", V2)
    found.register("orders-value", json.dumps(ORDER), format=Format.JSON)
    return found


@pytest.fixture
def file(own_folder: Path, registry: FileRegistry) -> Path:
    path = own_folder / "games.yaml"
    path.write_text(FILE.format(root=own_folder))
    return path


@pytest.fixture
def lake(own_folder: Path, file: Path) -> Path:
    return make_lake(own_folder / "lake", file=file)


def test_subjects_by_file_by_lake_and_by_folder(lake: Path, file: Path, cli: Cli) -> None:
    document = cli("schema", "subjects", file, "--json").json
    assert document["version"] == 1
    assert [s["subject"] for s in document["subjects"]] == ["chess-value", "orders-value"]
    chess = document["subjects"][0]
    assert (chess["versions"], chess["id"], chess["format"]) == ([1, 2], 2, "protobuf")
    assert chess["message"] == "game.Chess"
    assert cli("schema", "subjects", "--json").json["subjects"] == document["subjects"]
    by_folder = cli("schema", "subjects", "--registry", "schemas", "--json").json
    assert by_folder["subjects"] == document["subjects"]
    assert "2 subjects" in cli("schema", "subjects").out


def test_subjects_can_be_searched(registry: FileRegistry, cli: Cli) -> None:
    found = cli("schema", "subjects", "--registry", "schemas", "--matching", "order", "--json")
    assert [s["subject"] for s in found.json["subjects"]] == ["orders-value"]


def test_a_version_of_a_subject(lake: Path, cli: Cli) -> None:
    newest = cli("schema", "show", "chess-value", "--json").json
    assert (newest["subject_version"], newest["id"], newest["versions"]) == (2, 2, [1, 2])
    assert newest["schema"] == V2
    assert [(c["name"], c["type"]) for c in newest["columns"]] == [
        ("player", "string"),
        ("score", "bigint"),
        ("move", "string"),
    ]
    first = cli("schema", "show", "chess-value", "v1", "--json").json
    assert first["schema"] == V1
    text = cli("schema", "show", "orders-value").out
    assert "additionalProperties" in text
    assert "bigint" in text


def test_tables_go_before_subjects_unless_a_version_is_asked_for(
    lake: Path, registry: FileRegistry, cli: Cli
) -> None:
    registry.register("chess", V1)
    assert cli("schema", "show", "chess", "--json").json["table"] == "silver_0"
    assert cli("schema", "show", "chess", 1, "--json").json["subject"] == "chess"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "chess-valu"], "did you mean chess-value"),
        (["show", "ches"], "did you mean chess"),
        (["show", "chess-value", "9"], "1, 2"),
        (["diff", "orders-valeu"], "did you mean orders-value"),
        (["diff", "chess-value", "x"], "1, 2"),
        (["ids", "silver_9"], "did you mean silver_"),
        (["subjects", "--registry", "nowhere"], "nowhere"),
        (["subjects", "--registry", "http://"], "--registry"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(
    lake: Path, cli: Cli, words: list[str], said: str
) -> None:
    result = cli("schema", *words)
    assert result.code == 2, result.err
    assert said in result.err


def test_the_last_two_versions_are_compared(lake: Path, cli: Cli) -> None:
    document = cli("schema", "diff", "chess-value", "--json").json
    assert (document["from"]["name"], document["to"]["name"]) == ("v1", "v2")
    assert [c["text"] for c in document["columns"]] == ["~ score int to bigint", "+ move string"]
    assert "+  string move = 3;" in document["text"]
    assert document["compatible"] is True
    back = cli("schema", "diff", "chess-value", 2, 1, "--json").json
    assert [(c["kind"], c["column"]) for c in back["columns"]] == [
        ("fits", "score"),
        ("column_missing", "move"),
    ]


def test_a_type_that_does_not_fit_is_not_said_to(lake: Path, own_folder: Path, cli: Cli) -> None:
    new = own_folder / "new.proto"
    new.write_text(V2.replace("int64 score", "string score"))
    document = cli("schema", "diff", "chess-value", "--file", new, "--json").json
    assert [c["kind"] for c in document["columns"]] == ["side_column_added"]


def test_one_version_has_nothing_to_be_compared_with(lake: Path, cli: Cli) -> None:
    document = cli("schema", "diff", "orders-value", "--json").json
    assert document["text"] == document["columns"] == []


def test_a_new_schema_is_judged_before_it_is_registered(
    lake: Path, own_folder: Path, cli: Cli
) -> None:
    new = own_folder / "new.proto"
    new.write_text(V2.replace("move = 3;", "move = 3;\n  bool won = 4;"))
    good = cli("schema", "diff", "chess-value", "--file", new, "--json")
    assert (good.code, good.json["compatible"]) == (0, True)
    assert [c["text"] for c in good.json["columns"]] == ["+ won boolean"]
    new.write_text(BROKEN)
    bad = cli("schema", "diff", "chess-value", "--file", new)
    assert bad.code == 1
    assert "not compatible at level BACKWARD" in bad.out
    new.write_text("no schema")
    assert cli("schema", "diff", "chess-value", "--file", new).code == 1
    assert cli("schema", "diff", "chess-value", "--file", "missing.proto").code == 2


def test_json_schemas_are_compared_line_by_line(lake: Path, own_folder: Path, cli: Cli) -> None:
    new = own_folder / "order.json"
    note = {"type": "string"}
    new.write_text(json.dumps({**ORDER, "properties": {**ORDER["properties"], "note": note}}))
    document = cli("schema", "diff", "orders-value", "--file", new, "--json").json
    assert document["compatible"] is True
    assert [c["text"] for c in document["columns"]] == ["+ note string"]
    assert any(line.startswith('+    "note"') for line in document["text"])


def test_a_first_version_is_compared_with_nothing(lake: Path, own_folder: Path, cli: Cli) -> None:
    new = own_folder / "new.proto"
    new.write_text(V1)
    document = cli("schema", "diff", "brand-new", "--file", new, "--json").json
    assert document["from"]["name"] == "nothing"
    assert [c["text"] for c in document["columns"]] == ["+ player string", "+ score int"]


def test_imports_of_a_new_schema_are_named(
    lake: Path, own_folder: Path, registry: FileRegistry, cli: Cli
) -> None:
    registry.register("common", 'syntax = "proto3"; message Id { string value = 1; }')
    new = own_folder / "new.proto"
    new.write_text('syntax = "proto3"; import "common.proto"; message A { Id id = 1; }')
    named = cli(
        *("schema", "diff", "a-value", "--file", new, "--json"),
        *("--reference", "common.proto=common"),
    )
    assert [c["column"] for c in named.json["columns"]] == ["id"]
    assert cli("schema", "diff", "a-value", "--file", new).code == 1
    wrong = cli("schema", "diff", "a-value", "--file", new, "--reference", "common.proto")
    assert wrong.code == 2


def test_ids_of_a_table_come_from_the_ledger(lake: Path, cli: Cli) -> None:
    document = cli("schema", "ids", "silver_1", "--json").json
    assert document["kind"] == "table"
    (one,) = document["ids"]
    assert (one["id"], one["rows"], one["first_batch"], one["last_batch"]) == (1, 10, 0, 0)
    # the ledger has no word about id 1, so the registry was asked
    assert (one["subject"], one["subject_version"]) == ("chess-value", 1)
    assert "chess-value" in cli("schema", "ids", "silver_1").out


def test_ids_of_a_type_and_of_a_topic(lake: Path, cli: Cli) -> None:
    by_type = cli("schema", "ids", "chess", "--json").json
    assert [use["id"] for use in by_type["ids"]] == [0]
    by_topic = cli("schema", "ids", "wrapper", "--json").json
    assert by_topic["kind"] == "topic"
    assert [use["id"] for use in by_topic["ids"]] == [0, 1]


def test_rows_are_counted_where_they_say_their_schema(lake: Path, cli: Cli) -> None:
    for name, ids in (("silver_0", [0, 0, 7]), ("silver_1", [1])):
        rows = pa.table(
            {
                "move": ["e4"] * len(ids),
                "_schema_id": pa.array(ids, pa.int64()),
                "_topic": ["wrapper"] * len(ids),
            }
        )
        write_deltalake(str(lake / name), rows, mode="overwrite", schema_mode="overwrite")
    by_table = cli("schema", "ids", "silver_0", "--json").json["ids"]
    assert [(use["id"], use["rows"]) for use in by_table] == [(0, 2), (7, 1)]
    by_topic = cli("schema", "ids", "wrapper", "--json").json["ids"]
    assert [(use["id"], use["rows"]) for use in by_topic] == [(0, 2), (1, 1), (7, 1)]


def test_subjects_complete_without_asking_anybody(lake: Path, own_folder: Path) -> None:
    def context(**params: object) -> Any:
        return SimpleNamespace(params=params)

    assert complete_subjects(context(), "ch") == ["chess-value"]
    assert complete_schemas(context(), "") == [
        "chess-value",
        "dead_letters",
        "silver_0",
        "silver_1",
    ]
    assert complete_subjects(context(registry="schemas"), "o") == ["orders-value"]
    assert complete_subjects(context(registry="http://127.0.0.1:9"), "") == []
    assert complete_subjects(context(lake="s3://nowhere/lake"), "") == []


def test_a_registry_that_does_not_answer_is_worth_another_try(own_folder: Path, cli: Cli) -> None:
    assert cli("schema", "subjects", "--registry", "http://127.0.0.1:9").code == 75
    result = cli("schema", "subjects", "--registry", "http://user:hunter2@127.0.0.1:9")
    assert result.code == 2
    assert "hunter2" not in result.out + result.err


def test_a_registry_of_several_contexts(own_folder: Path, cli: Cli) -> None:
    known = Contexted()
    known.add("chess-value", V1)
    known.add(":.team:chess-value", V1.replace("Chess", "Go"))
    known.add(":.team:chess-value", V2.replace("Chess", "Go"))
    with serving(known, paged=True) as server:
        where = ("--registry", server.url)
        listed = cli("schema", "subjects", *where, "--json").json["subjects"]
        assert [(s["subject"], s["id"], s["message"]) for s in listed] == [
            (":.team:chess-value", 2, "game.Go"),
            ("chess-value", 1, "game.Chess"),
        ]
        # a listing is a question or two, however many subjects there are
        assert len(server.asked) == 2
        shown = cli("schema", "show", ":.team:chess-value", 1, *where, "--json").json
        assert (shown["id"], shown["message"]) == (1, "game.Go")
        assert "message Go" in shown["schema"]
        changes = cli("schema", "diff", ":.team:chess-value", *where).out
        assert "move" in changes and "Chess" not in changes


def test_hostile_texts_stay_text(own_folder: Path, registry: FileRegistry, cli: Cli) -> None:
    evil = "evil\x1b[31m\u202e"
    text = json.dumps({**ORDER, "title": evil, "description": evil}, ensure_ascii=False)
    registry.register(evil, text, format=Format.JSON)
    where = ("--registry", "schemas")
    for words in (["subjects"], ["show", evil], ["diff", evil]):
        result = cli("schema", *words, *where)
        assert result.code == 0, result.err
        assert "\x1b" not in result.out + result.err
        assert "\u202e" not in result.out + result.err


def test_none_of_it_imports_spark(lake: Path) -> None:
    code = (
        "import sys\n"
        "from distributary.cli import main\n"
        "for words in ('subjects', 'show chess-value', 'diff chess-value', 'ids chess'):\n"
        "    assert main(['schema', *words.split()]) == 0, words\n"
        "    assert 'pyspark' not in sys.modules, words\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_the_message_of_a_subject_is_the_one_that_payloads_are(
    lake: Path, file: Path, registry: FileRegistry, cli: Cli
) -> None:
    helper, event = "message Item { int32 n = 1; }", "message event { repeated Item items = 1; }"
    other = "message Other { string name = 1; }"
    registry.register("go-value", f'syntax = "proto3"; {helper} {event}')
    shown = cli("schema", "show", "go-value", "--json").json
    assert shown["message"] == "event"
    assert [column["name"] for column in shown["columns"]] == ["items"]
    registry.register("go-value", f'syntax = "proto3"; {helper} {event} {other}')
    unclear = cli("schema", "show", "go-value", "--json").json
    assert (unclear["message"], unclear["columns"]) == ("", [])
    assert unclear["error"]
    file.write_text(
        file.read_text().replace("{format: protobuf}", "{format: protobuf, message: Other}")
    )
    pin_file(lake, file)
    named = cli("schema", "show", "go-value", "--json").json
    assert named["message"] == "Other"
    assert [column["name"] for column in named["columns"]] == ["name"]
