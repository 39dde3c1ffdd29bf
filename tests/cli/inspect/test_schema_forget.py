"""`schema forget`: an inferred schema is put aside, and the next batch infers it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.config.load import load
from distributary.engine.seams import make_inferred
from distributary.registry.record_schemas import InferredSchemas
from tests.cli.conftest import Cli

EVENTS = """
name: events
source: {{type: delta, path: {root}/events, topic: events}}
{more}
lake: {{path: {root}/lake}}
"""
JSON = "payload: {format: json}\ntables: {each: 'silver_{topic}'}"
CHANGES = """
payload: {format: json}
cdc: {format: debezium}
tables: {each: "{database}_{schema}_{table}"}"""
WORD = {"type": ["null", "string"]}
ORDERS = '["shop","public","orders"]'


def written(root: Path, more: str = JSON) -> Path:
    file = root / "events.yaml"
    file.write_text(EVENTS.format(root=root, more=more))
    return file


def kept(file: Path) -> InferredSchemas:
    found = make_inferred(load(file).config)
    assert found is not None
    return found


def test_a_forgotten_schema_is_not_there_any_more(own_folder: Path, cli: Cli) -> None:
    file = written(own_folder)
    kept(file).add({"events": WORD})
    tried = cli("schema", "forget", "events", file, "--dry-run", "--json")
    assert (tried.code, tried.json["forgotten"]) == (0, False)
    assert kept(file).document("events") == WORD
    done = cli("schema", "forget", "events", file, "--json")
    assert (done.code, done.json["forgotten"], done.json["schema"]) == (0, True, "events")
    assert kept(file).document("events") is None
    again = cli("schema", "forget", "events", file, "--json")
    assert (again.code, again.json["error"]["code"]) == (2, "NOT_FOUND")
    kept(file).add({"events": {"type": ["null", "object"], "properties": {"id": WORD}}})
    assert kept(file).document("events") != WORD


@pytest.mark.parametrize("name", ["shop.public.orders", "public.orders", "orders", ORDERS])
def test_a_table_of_a_database_goes_by_its_name(own_folder: Path, cli: Cli, name: str) -> None:
    file = written(own_folder, CHANGES)
    kept(file).add({ORDERS: WORD})
    kept(file).add({'["shop","public","old_orders"]': WORD})
    assert cli("schema", "forget", name, file).code == 0
    assert kept(file).document(ORDERS) is None


def test_a_name_that_several_have_is_refused(own_folder: Path, cli: Cli) -> None:
    file = written(own_folder, CHANGES)
    kept(file).add({ORDERS: WORD})
    kept(file).add({'["bank","public","orders"]': WORD})
    result = cli("schema", "forget", "orders", file, "--json")
    assert (result.code, result.json["error"]["code"]) == (2, "NOT_FOUND")
    assert kept(file).document(ORDERS) == WORD


def test_a_pipeline_with_a_registry_infers_nothing(own_folder: Path, cli: Cli) -> None:
    more = "registry: {path: schemas}\npayload: {format: json}\ntables: {each: 'silver_{topic}'}"
    result = cli("schema", "forget", "events", written(own_folder, more), "--json")
    assert (result.code, result.json["error"]["code"]) == (2, "NOT_FOUND")
