"""What is said before a run, and after one, about payloads of a file with several messages."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from distributary.engine.pipeline import Pipeline
from distributary.operations.insight import look_inside
from distributary.operations.plan.trial_registry import preview
from distributary.registry.folder import FileRegistry

WRAPPER = "message wrapper { optional string kind=1; optional int32 id=2; optional bytes body=3; }"
TRACE = "message Trace { optional string id = 9; }"
ITEM = "message Item { string sku = 1; int32 pieces = 2; }"
EVENT = "message event { string user = 1; string note = 2; repeated Item items = 3; }"
OTHER = "message Other { string name = 1; }"
PAYLOAD = b"\x0a\x02me\x12\x02hi\x1a\x05\x0a\x01s\x10\x02"


def pipeline(root: Path, *messages: str) -> tuple[Pipeline, bytes]:
    """A pipeline with one unread record, and that record."""
    registry = FileRegistry(root / "schemas", durable=False)
    registry.register("wrapper-value", f"{TRACE} {WRAPPER}")
    number = registry.register("chess-value", f'syntax = "proto3"; {" ".join(messages)}')
    value = b"\x0a\x05chess\x10" + bytes([number, 0x1A, len(PAYLOAD)]) + PAYLOAD
    write_deltalake(str(root / "wrapper"), pa.table({"wrapper": pa.array([value], pa.binary())}))
    file = root / "games.yaml"
    file.write_text(f"""
name: games
source: {{type: delta, path: {root}/wrapper, value: wrapper}}
registry: {{path: {root}/schemas}}
envelope: {{format: protobuf, subject: wrapper-value, type: kind, schema_id: id, payload: body}}
payload: {{format: protobuf}}
tables: {{each: 'silver_{{type}}'}}
lake: {{path: {root}/lake}}
""")
    return Pipeline.load(file), value


def letter(value: bytes) -> dict[str, Any]:
    return {
        "key": None,
        "value": value,
        "headers": None,
        "topic": "wrapper",
        "partition": 0,
        "offset": 0,
        "timestamp": datetime(2024, 1, 1, tzinfo=UTC),
        "schema_id": 2,
        "error_position": None,
        "stage": "decode",
    }


def test_a_plan_names_the_columns_of_the_message_that_payloads_are(tmp_path: Path) -> None:
    found = preview(pipeline(tmp_path, ITEM, EVENT)[0])
    assert not found.dead_letters
    table = next(table for table in found.tables if table.name == "silver_chess")
    text = " ".join(change.describe() for change in table.changes)
    assert "user" in text
    assert "pieces int," not in text


def test_a_plan_foresees_the_dead_letters_of_a_message_that_nobody_can_tell(tmp_path: Path) -> None:
    found = preview(pipeline(tmp_path, OTHER, ITEM, EVENT)[0])
    assert dict(found.dead_letters) == {"AMBIGUOUS_MESSAGE": 1}
    assert "silver_chess" not in {table.name for table in found.tables}


def test_a_dead_letter_is_shown_as_the_message_that_it_is(tmp_path: Path) -> None:
    one, value = pipeline(tmp_path, ITEM, EVENT)
    assert 'user: "me"' in look_inside(one, letter(value)).text


def test_a_dead_letter_of_no_known_message_is_shown_by_numbers(tmp_path: Path) -> None:
    one, value = pipeline(tmp_path, OTHER, ITEM, EVENT)
    assert '1: "me"' in look_inside(one, letter(value)).text
    assert '"user": "me"' in look_inside(None, letter(b'{"user":"me"}')).text
