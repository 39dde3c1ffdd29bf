"""Metrics of several pipelines, through restarts."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as parse

from distributary.config.load import load_text
from distributary.config.pipeline_config import PipelineConfig
from distributary.observe.events import EventBus, decode, encode
from distributary.supervise.supervisor import counting
from tests.observe.conftest import NOON, Lake
from tests.observe.test_metrics import settled, written


def config(name: str, lake: str, limit: int) -> PipelineConfig:
    text = f"""
name: {name}
source: {{type: delta, path: ./t}}
payload: {{format: json}}
tables: {{each: "{{topic}}"}}
lake: {{path: {lake}}}
metrics: {{max_tables: {limit}}}
"""
    return load_text(text, file="p.yaml", environ={}).config


def test_pipelines_count_side_by_side_and_begin_with_their_ledgers(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lake.settle(lake.manifest(0))
    configs = [config("games", lake.path, 200), config("orders", str(tmp_path / "none"), 0)]
    bus = EventBus()
    with counting(configs, bus) as render:
        for event in (settled(0), settled(0), settled(0, pipeline="orders")):
            # as it comes from another process
            again = decode(encode(event))
            assert again == event
            bus.publish(again)
        text = render("")[1].decode()
    found = {
        (s.name, s.labels.get("pipeline"), s.labels.get("table")): s.value
        for family in parse(text)
        for s in family.samples
    }
    assert found["distributary_records_read_total", "games", None] == 10
    assert found["distributary_table_rows_total", "games", "chess"] == 10
    assert found["distributary_table_rows_total", "orders", "other"] == written("x").rows
    moment = found["distributary_table_last_commit_timestamp_seconds", "games", "chess"]
    assert moment == NOON.timestamp()
