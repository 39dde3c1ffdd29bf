"""What the kind of a pipeline's records decides: roles, merges, arrival, schemas, the source."""

from __future__ import annotations

import pytest

from distributary.config.load import load_text
from distributary.config.pipeline_config import PipelineConfig
from distributary.engine.planning.strategies import strategy_of
from distributary.engine.planning.table_book import merge_config, primary_role
from distributary.model.table import Role

PLAIN = """
name: games
source: {type: delta, path: lake/wrapper, value: wrapper}
payload: {format: json}
tables: {each: "silver_{topic}"}
lake: {path: lake}
"""
CHANGES = """
name: shop
source: {type: files, path: in, format: json}
cdc: {format: datastream}
tables: {each: "{table}"}
lake: {path: lake}
"""
URL = "postgresql://reader:hush@db.example.com/shop"


def config(text: str, *, extra: str = "") -> PipelineConfig:
    return load_text(text + extra).config


def test_records_are_rows() -> None:
    plain = config(PLAIN)
    strategy = strategy_of(plain)
    assert (primary_role(plain), strategy.merges, strategy.arrival) == (Role.EACH, False, "unknown")
    assert merge_config(plain, "silver_chess") is None
    assert (strategy.format, strategy.changes, strategy.source_url) == (None, None, None)
    assert strategy.rejects_rows and strategy.retypes
    assert strategy.unregistered == ("without a registry records bring", "registry")
    assert strategy_of(config(PLAIN, extra="registry: {path: schemas}")).unregistered is None


@pytest.mark.parametrize("name", ["silver_chess", "silver_chess_log", "silver_chess_history"])
def test_tables_with_a_key_are_merged_and_others_are_not(name: str) -> None:
    keyed = config(PLAIN, extra="keys: [{tables: [silver_chess], key: [id]}]")
    assert strategy_of(keyed).merges and primary_role(keyed) is Role.EACH
    assert merge_config(keyed, name) is keyed.keys[0]
    assert merge_config(keyed, name.replace("chess", "go")) is None
    # their order does not depend on the source's log
    assert strategy_of(keyed).arrival == "unknown"


def test_changes_are_a_log_of_which_every_table_is_merged() -> None:
    changes = config(CHANGES)
    strategy = strategy_of(changes)
    assert (primary_role(changes), strategy.merges, strategy.arrival) == (Role.LOG, True, "files")
    assert merge_config(changes, "orders_log") is changes.cdc
    assert strategy.format is not None and strategy.format.name == "datastream"
    assert strategy.changes is not None and strategy.changes.from_files
    assert not strategy.rejects_rows and not strategy.retypes
    assert strategy.unregistered == ("change data brings", "cdc")
    assert strategy.source_url is None


def test_a_broker_keeps_the_order_and_the_source_may_have_an_address() -> None:
    text = CHANGES.replace("type: files, path: in, format: json", "type: kafka, topics: [orders]")
    text = text.replace("topics: [orders]", 'topics: [orders], bootstrap_servers: "localhost:9"')
    text = text.replace("format: datastream", f'format: debezium, source_url: "{URL}"')
    strategy = strategy_of(config(text, extra="payload: {format: json}"))
    assert (strategy.arrival, strategy.source_url) == ("partitions", URL)
    assert "hush" not in repr(strategy)
