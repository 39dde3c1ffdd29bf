"""What a schema that is not registered would do, found without Spark."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from distributary.cli.plan import as_markdown, code
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.seams import make_source
from distributary.errors import ConfigError, ErrorCode, InvalidSchemaError
from distributary.model.manifest import Counts, Manifest, SourceRange
from distributary.model.record import Format, WriterSchema
from distributary.model.table import ChangeKind
from distributary.operations.plan.schema_proposal import (
    SchemaProposal,
    lost_and_changed,
    propose,
    rewritten,
)
from distributary.operations.plan.trial_registry import choose_subject, judge_of
from distributary.registry.base import Reference
from distributary.registry.compile import compile_schema
from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.dice import event, event_subject
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games
from tests.registry.frames import frame
from tests.registry.loopback import by_path, serving
from tests.registry.loopback import registry as http_registry


def games(root: Path, **plan: Any) -> Games:
    made = Games(root, GamesPlan(**({"games": 3, "versions": 2, "records": 4} | plan)))
    made.send_all()
    return made


def proposed(made: Games, text: str, game: int = 0, **settings: Any) -> SchemaProposal:
    pipeline = made.pipeline(**settings)
    subject = event_subject(made.plan.names[game])
    return propose(pipeline, judge_of(pipeline.config), subject=subject, text=text)


def files_of(root: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def changes_of(found: SchemaProposal, table: str) -> list[tuple[str, str]]:
    return [(str(c.kind), c.column) for t in found.tables if t.name == table for c in t.changes]


def test_a_new_field_adds_a_column_and_breaks_nothing(tmp_path: Path) -> None:
    made = games(tmp_path)
    name = made.plan.names[0]
    made.write_file()
    kept = files_of(tmp_path)
    found = proposed(made, event(name, 3))
    assert (found.compatible, found.breaks, found.version) == (True, False, 3)
    assert changes_of(found, f"silver_{name}") == [("column_added", f"col_{name}_2")]
    assert (found.trial.records, found.trial.decoded, found.read) == (8, 8, 24)
    assert found.trial.losses == ()
    # nothing is registered or written
    assert files_of(tmp_path) == kept


def test_the_same_schema_changes_nothing(tmp_path: Path) -> None:
    made = games(tmp_path)
    found = proposed(made, event(made.plan.names[1], 2), game=1)
    assert not found.breaks
    assert [change for table in found.tables for change in table.changes] == []


def test_a_field_of_another_type_breaks_records_or_loses_values(tmp_path: Path) -> None:
    made = games(tmp_path)
    name = made.plan.names[0]
    text = event(name, 2).replace("string user_name = 2", "int64 user_name = 2")
    found = proposed(made, text)
    assert not found.compatible
    assert found.breaks
    trial = found.trial
    assert trial.records == 8
    hurt = trial.broken + sum(
        x.changed + x.vanished for x in trial.losses if x.field == "user_name"
    )
    assert hurt == 8
    side = [c for t in found.tables for c in t.changes if c.kind is ChangeKind.SIDE_COLUMN_ADDED]
    assert [c.column for c in side if c.column.startswith("user_name")]


def test_a_message_in_place_of_text_breaks_records_with_a_code(tmp_path: Path) -> None:
    made = games(tmp_path)
    name = made.plan.names[0]
    text = event(name, 2).replace("string user_name = 2", "inner user_name = 2")
    found = proposed(made, text + "message inner { fixed64 a = 1; }\n")
    assert found.trial.broken > 0
    breakage = found.trial.breakages[0]
    assert breakage.code in set(ErrorCode)
    assert breakage.example.startswith("wrapper/0/")


def test_values_of_a_field_that_is_gone_vanish(tmp_path: Path) -> None:
    made = games(tmp_path)
    name = made.plan.names[0]
    text = "\n".join(x for x in event(name, 2).splitlines() if "user_name" not in x)
    found = proposed(made, text)
    losses = {x.field: x.vanished for x in found.trial.losses}
    assert losses == {"user_name": 8}
    assert ("column_missing", "user_name") in changes_of(found, f"silver_{name}")


def test_a_renamed_field_keeps_its_values(tmp_path: Path) -> None:
    made = games(tmp_path)
    text = event(made.plan.names[0], 2).replace("user_name", "player")
    found = proposed(made, text)
    assert found.trial.losses == ()
    assert found.trial.decoded == 8


@pytest.mark.parametrize(("policy", "stops"), [("dead_letter", False), ("fail", True)])
def test_a_policy_may_refuse_the_change(tmp_path: Path, policy: str, stops: bool) -> None:
    made = games(tmp_path, versions=1)
    name = made.plan.names[0]
    found = proposed(made, event(name, 2), extra=f"evolution: {{new_field: {policy}}}")
    assert found.compatible
    assert found.breaks
    assert [r.stops for r in found.refusals] == [stops]
    assert changes_of(found, f"silver_{name}") == [("refused", f"col_{name}_1")]
    assert (found.trial.records, found.trial.untried, found.untried) == (4, 4, "")


def test_an_ignored_field_is_told(tmp_path: Path) -> None:
    made = games(tmp_path, versions=1)
    name = made.plan.names[0]
    found = proposed(made, event(name, 2), extra="evolution: {new_field: ignore}")
    assert changes_of(found, f"silver_{name}") == [("field_ignored", f"col_{name}_1")]
    assert not found.breaks


def test_only_the_newest_records_are_tried(tmp_path: Path) -> None:
    made = games(tmp_path, records=20)
    pipeline = made.pipeline()
    subject = event_subject(made.plan.names[0])
    text = event(made.plan.names[0], 2)
    found = propose(pipeline, judge_of(pipeline.config), subject=subject, text=text, most=7)
    assert (found.trial.records, found.trial.decoded) == (7, 7)


def test_the_last_batch_is_tried_and_what_follows_it(tmp_path: Path) -> None:
    made = Games(tmp_path, GamesPlan(games=2, versions=4, records=5))
    source = make_source(made.pipeline().config)
    checkpoint: Checkpoint | None = None
    for batch in range(3):
        made.send_round()
        position = source.newest() | {"rows": 10 * (batch + 1)}
        if checkpoint is None:
            checkpoint = Checkpoint.begin(made.pipeline().checkpoint, pipeline="games")
            first: dict[str, Any] = {"version": 0, "index": 0, "rows": 0}
            checkpoint.first_position(lambda known=first: known)
        one = SourceRange("wrapper", 0, 10 * batch, 10 * (batch + 1), 10)
        facts = {"epoch": 1, "tables": (), "counts": Counts(), "dead_letters": {}, "schemas": ()}
        manifest = Manifest(
            "games",
            checkpoint.life,
            batch,
            ranges=(one,),
            created_at="2026-01-01T00:00:00+00:00",
            source_state=position,
            **facts,
        )
        checkpoint.manifests().create(manifest)
    made.send_round()
    name = made.plan.names[0]
    text = "\n".join(x for x in event(name, 4).splitlines() if "user_name" not in x)
    found = proposed(made, text)
    # the third batch begins at offset 20, and another ten records came since
    assert (found.read, found.trial.records) == (20, 10)
    assert int(found.trial.losses[0].example.rpartition("/")[2]) >= 20


def test_without_a_source_the_rest_is_told(tmp_path: Path) -> None:
    made = Games(tmp_path, GamesPlan(games=1, versions=1, records=1))
    name = made.plan.names[0]
    subject = event_subject(name)
    made.registry.register(
        "wrapper-value",
        "message wrapper { optional string game_name = 1;"
        " optional int32 schema_id = 2; optional bytes payload = 3; }",
    )
    made.registry.register(subject, event(name, 1))
    found = proposed(made, event(name, 2).replace("user_name", "player"))
    assert found.untried.startswith("SOURCE_UNAVAILABLE")
    assert found.trial.records == 0
    assert [t.new for t in found.tables if t.name == f"silver_{name}"] == [True]
    assert changes_of(found, f"silver_{name}") == [("table_created", "")]
    assert not found.breaks


def test_the_subject_is_found_by_file_or_type(tmp_path: Path) -> None:
    made = games(tmp_path)
    pipeline = made.pipeline()
    registry, config = judge_of(pipeline.config), pipeline.config
    name = made.plan.names[2]
    text = event(name, 3)
    subject = event_subject(name)
    for stem in (name, subject, name.upper()):
        path = Path(f"{stem}.proto")
        assert choose_subject(registry, config, text=text, path=path) == subject
    new = Path("new.proto")
    assert choose_subject(registry, config, text=text, path=new, type=name) == subject
    assert choose_subject(registry, config, text=text, path=new, type="none") == "none-value"
    with pytest.raises(ConfigError) as wrong:
        choose_subject(registry, config, text=text, path=new)
    # every game's message has the same name
    assert all(event_subject(each) in wrong.value.evidence for each in made.plan.names)


def test_what_is_no_schema_and_the_envelope_are_refused(tmp_path: Path) -> None:
    made = games(tmp_path, versions=1)
    with pytest.raises(InvalidSchemaError):
        proposed(made, "message {")
    pipeline = made.pipeline()
    with pytest.raises(ConfigError):
        propose(pipeline, judge_of(pipeline.config), subject="wrapper-value", text="")


def test_references_come_from_the_registry(tmp_path: Path) -> None:
    made = games(tmp_path)
    name = made.plan.names[0]
    made.registry.register("deep.proto", 'syntax = "proto3"; message deep { string a = 1; }')
    made.registry.register(
        "rank.proto",
        'syntax = "proto3"; import "deep.proto"; message rank { deep d = 1; }',
        references=[{"name": "deep.proto", "subject": "deep.proto", "version": 1}],
    )
    text = event(name, 2).replace("import", 'import "rank.proto";\nimport', 1)
    text = text.replace("  string game_name", "  rank rank = 77;\n  string game_name")
    found = proposed(made, text)
    assert ("column_added", "rank") in changes_of(found, f"silver_{name}")


ORDER: dict[str, Any] = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "state", "type": {"type": "enum", "name": "state", "symbols": ["NEW", "OLD"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}


def avro_lake(root: Path) -> Pipeline:
    registry = FileRegistry(root / "schemas", durable=False)
    number = registry.register("orders-value", json.dumps(ORDER), format=Format.AVRO)
    values = []
    for i in range(10):
        out = io.BytesIO()
        state = "OLD" if i == 7 else "NEW"
        plain = json.loads(json.dumps(ORDER).replace(', "logicalType": "timestamp-micros"', ""))
        fastavro.schemaless_writer(out, plain, {"id": i, "state": state, "at": 10**15 + i})
        values.append(frame(out.getvalue(), schema_id=number, indexes=None))
    write_deltalake(str(root / "orders"), pa.table({"value": pa.array(values, pa.binary())}))
    file = root / "orders.yaml"
    file.write_text(
        f"""
name: orders
source: {{type: delta, path: {root}/orders, value: value, topic: orders}}
registry: {{path: {root}/schemas}}
payload: {{format: avro}}
tables: {{each: "{{topic}}"}}
lake: {{path: {root}/lake}}
"""
    )
    return Pipeline.load(file)


def avro_proposal(root: Path, **changed: Any) -> SchemaProposal:
    pipeline = avro_lake(root)
    fields = [f | {"type": changed.get(f["name"], f["type"])} for f in ORDER["fields"]]
    fields += [changed["more"]] if "more" in changed else []
    text = json.dumps(ORDER | {"fields": fields})
    return propose(pipeline, judge_of(pipeline.config), subject="orders-value", text=text)


def test_avro_records_are_written_anew_with_the_proposed_schema(tmp_path: Path) -> None:
    note = {"name": "note", "type": "string", "default": "-"}
    found = avro_proposal(tmp_path, more=note)
    assert not found.breaks
    assert found.trial.decoded == found.trial.records == 10
    assert found.trial.losses == ()
    assert changes_of(found, "orders") == [("column_added", "note")]


def test_an_avro_symbol_that_is_gone_breaks_the_records_that_have_it(tmp_path: Path) -> None:
    found = avro_proposal(tmp_path, state={"type": "enum", "name": "state", "symbols": ["NEW"]})
    assert not found.compatible
    assert [(b.code, b.records, b.example) for b in found.trial.breakages] == [
        (ErrorCode.PAYLOAD_MISMATCH, 1, "orders/0/7")
    ]
    assert found.trial.decoded == 9


def test_json_payloads_are_held_to_the_proposed_schema(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path / "schemas", durable=False)
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "n": {"type": "number"}}}
    number = registry.register("people-value", json.dumps(schema), format=Format.JSON)
    texts = [json.dumps({"id": i, "n": i / 2}).encode() for i in range(6)]
    values = [frame(text, schema_id=number, indexes=None) for text in [*texts, b"{"]]
    write_deltalake(str(tmp_path / "people"), pa.table({"value": pa.array(values, pa.binary())}))
    file = tmp_path / "people.yaml"
    file.write_text(
        f"""
name: people
source: {{type: delta, path: {tmp_path}/people, value: value}}
registry: {{path: {tmp_path}/schemas}}
payload: {{format: json}}
tables: {{each: "{{topic}}"}}
lake: {{path: {tmp_path}/lake}}
"""
    )
    pipeline = Pipeline.load(file)
    registry.set_compatibility(None, "NONE")
    new = json.dumps(schema | {"properties": {"id": {"type": "integer", "maximum": 3}}})
    found = propose(pipeline, judge_of(pipeline.config), subject="people-value", text=new)
    assert found.compatible
    assert found.breaks
    trial = found.trial
    assert (trial.records, trial.decoded, trial.broken_now, trial.broken) == (7, 4, 1, 2)
    assert trial.breakages[0].example == "people/0/4"
    assert {x.field: x.vanished for x in trial.losses if x.vanished} == {"n": 4}


@pytest.mark.parametrize(
    "hostile", ["a|b", "`x`", "<script>", "[a](http://b)", "@all", "a\n# b", "**b**", "\\|", "_é_"]
)
def test_hostile_names_are_no_markdown(hostile: str) -> None:
    shown = code(hostile)
    assert "\n" not in shown
    inside = shown.removeprefix("<code>").removesuffix("</code>")
    if inside == shown:
        assert not set(shown[1:-1]) & set("|`\\@*[]\n")
    else:
        assert not set(inside) & set("|`\\@*_[]<>()!~")


def test_markdown_has_verdict_changes_and_counts(tmp_path: Path) -> None:
    made = games(tmp_path)
    name = made.plan.names[0]
    text = as_markdown(proposed(made, event(name, 3)), "new|.proto")
    assert text.startswith(f"### Schema change: `{name}-value v3`\n")
    assert "**Nothing would break.** <code>new&#124;.proto</code> is compatible" in text
    assert f"| `silver_{name}` | column added | `col_{name}_2` |  | `string` |" in text
    assert "| tried | 8 |  |" in text


@pytest.mark.parametrize(
    ("before", "after", "vanished", "changed"),
    [
        (pa.array([1, None, 3]), None, [0, 2], []),
        (pa.array([1, 2, 3], pa.int32()), pa.array([1, 2, 3], pa.int64()), [], []),
        (pa.array([1, 2**40]), pa.array([1, 0], pa.int32()), [], [0, 1]),
        (pa.array([float("nan"), 1.0]), pa.array([float("nan"), 2.0]), [], [1]),
        (pa.array([[{"a": 1}], None]), pa.array([[{"a": 2}], [{"a": 1}]]), [], [0]),
        (pa.array([5, 6]), pa.array(["5", None]), [1], [0]),
        (
            pa.array([2**62, 2**61], pa.timestamp("us", "UTC")),
            pa.array([2**62, 2**60], pa.timestamp("us", "UTC")),
            [],
            [1],
        ),
        (pa.array([], pa.int32()), pa.array([], pa.string()), [], []),
    ],
)
def test_values_are_compared_across_types(
    before: pa.Array, after: pa.Array | None, vanished: list[int], changed: list[int]
) -> None:
    lost, other = lost_and_changed(before, after)
    assert (lost.tolist(), other.tolist()) == (vanished, changed)


def test_avro_values_stay_in_the_branch_that_their_writer_meant() -> None:
    def compiled(kind: Any) -> WriterSchema:
        text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "f", "type": kind}]})
        made = compile_schema(text, format=Format.AVRO, imports={})
        return WriterSchema(1, Format.AVRO, made.body, made.message, (), made.messages)

    # branch 2, the string, of one letter; bytes come first and could hold it too
    payloads = pa.array([b"\x04\x02s", b"\x00"], pa.binary())
    old = compiled(["null", "bytes", "string"])
    values, failures = rewritten(payloads, old, compiled(["bytes", "string"]))
    assert values == [b"\x02\x02s", None]
    assert [failure.index for failure in failures] == [1]


def test_a_registry_over_http_tells_what_a_schema_references() -> None:
    given = {"name": "rank.proto", "subject": "ranks", "version": 2}
    answer = {"schema": "...", "schemaType": "PROTOBUF", "references": [given]}
    script = by_path({"GET /schemas/ids/7": answer})
    with serving(script) as server, http_registry(server.url) as reader:
        assert reader.references(7) == (Reference("rank.proto", "ranks", 2),)
