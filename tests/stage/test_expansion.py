"""Records that become much more than they are, from raw records to files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from distributary.config.load import load_text
from distributary.decode import base
from distributary.decode.change.debezium.decoder import DebeziumDecoder
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.deadletter import Decoded
from distributary.model.record import RAW, Format
from distributary.stage import decoding
from distributary.stage.job import Staged
from distributary.stage.task_plan import RecordsPlan, TaskPlan
from distributary_lab.simulate.game_records import GamesPlan
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench
from tests.stage.test_inferred import Stream, event
from tests.stage.test_stage import games

COLUMNS = 100
MIB = 1 << 20
PROTO = "\n".join(
    [
        'syntax = "proto3";',
        "message Order { int64 id = 1; repeated Item items = 2; }",
        "message Item {",
        *(f"  int64 c{n} = {n};" for n in range(1, COLUMNS + 1)),
        "}",
    ]
)
PIPELINE = """
name: shop
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [orders]}}
registry: {{path: {lake}/schemas}}
payload: {{format: protobuf}}
tables: {tables}
lake: {{path: {lake}}}
{extra}
"""
EACH = "{each: 'silver_{topic}'}"


def order(number: int, items: int) -> bytes:
    return b"\x08" + bytes([number]) + b"\x12\x00" * items


class Shop:
    """Stages orders, each told by how many empty items it has."""

    def __init__(self, lake: Path, tables: str = EACH, extra: str = "") -> None:
        text = PIPELINE.format(lake=lake, tables=tables, extra=extra)
        config = load_text(text, file="shop.yaml", environ={}).config
        self.bench = Bench(lake, ScratchRegistry(), config)
        number = self.bench.registry.register("orders-value", PROTO)
        self.frame = b"\x00" + number.to_bytes(4, "big") + b"\x00"

    def stage(self, counts: list[int]) -> Staged:
        rows = [
            {"key": b"k", "value": self.frame + order(n, count), "topic": "orders", "partition": 0}
            | {"offset": n, "timestamp": 1_000_000}
            for n, count in enumerate(counts)
        ]
        batches = pa.Table.from_pylist(rows, RAW).combine_chunks().to_batches()
        return self.bench.stage(batches, tasks=1)


def test_twenty_records_of_empty_items_cost_no_memory_and_no_other_record(tmp_path: Path) -> None:
    script = f"""
import re
from pathlib import Path
from tests.stage.test_expansion import MIB, Shop

staged = Shop(Path({str(tmp_path)!r})).stage([3, *[MIB // 2] * 20, 4])
# of this program alone: what `getrusage` says begins with what the parent had
peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
print(dict(staged.dead), dict(staged.records), peak < 1_000_000)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.split("\n")[-2]
        == str({"PAYLOAD_EXPANDS": 20})
        + " "
        + str({"silver_orders": 2, "dead_letters": 20})
        + " True"
    )


def test_the_limit_is_a_setting_and_the_letter_has_the_record(tmp_path: Path) -> None:
    shop = Shop(tmp_path, extra="limits: {max_decoded_bytes: 100KiB}")
    staged = shop.stage([10, 1_000, 20])
    (letter,) = shop.bench.rows(staged, "dead_letters").to_pylist()
    assert letter["error_code"] == ErrorCode.PAYLOAD_EXPANDS
    assert letter["value"].endswith(order(1, 1_000))
    assert str(100 * 1024) in letter["error_message"]
    assert staged.records["silver_orders"] == 2


@pytest.mark.parametrize("tables", [EACH, "{each: 'silver_{topic}', unified: all}"])
def test_large_tables_are_written_in_several_files_with_the_same_rows(
    tmp_path: Path, tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [0, 5, 700, 1, 700, 700, 2, 0, 900, 3]
    whole, cut = Shop(tmp_path / "whole", tables), Shop(tmp_path / "cut", tables)
    once = whole.stage(counts)
    monkeypatch.setattr(base, "SLICE_BYTES", 600_000)
    monkeypatch.setattr(decoding, "BYTES_PER_FILE", 1_200_000)
    several = cut.stage(counts)
    assert once.records == several.records == dict.fromkeys(once.files, len(counts))
    for name, files in once.files.items():
        assert len(files) == 1 < len(several.files[name])
        rows = [
            shop.bench.rows(s, name).sort_by("id") for shop, s in ((whole, once), (cut, several))
        ]
        known = [column for column in rows[0].column_names if column != "_batch"]
        assert rows[0].select(known).equals(rows[1].select(known))


def test_a_wrapper_is_taken_apart_in_slices_too(
    monkeypatch: pytest.MonkeyPatch, bench: Callable[..., Bench]
) -> None:
    one = bench()
    raw, bad = games(one, GamesPlan(games=2, versions=2, records=20, bad=17))
    monkeypatch.setattr(base, "SLICE_BYTES", 2_000)
    staged = one.stage(raw)
    assert dict(staged.dead) == bad
    assert sum(staged.records.values()) == 80 + 17


def test_changes_are_decoded_in_slices_and_are_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "SLICE_BYTES", 1)
    monkeypatch.setattr(decoding, "BYTES_PER_FILE", 1)
    sizes: list[int] = []
    decode = DebeziumDecoder.decode

    def counted(self: DebeziumDecoder, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        sizes.append(len(payloads))
        return decode(self, payloads, raw)

    monkeypatch.setattr(DebeziumDecoder, "decode", counted)
    stream = Stream(tmp_path, changes=True)
    staged = stream.stage(*(event(number) for number in range(1, 6)))
    assert sizes == [1] * 5
    assert len(staged.files[stream.table]) == 1
    assert [row["id"] for row in stream.rows(staged)] == [1, 2, 3, 4, 5]


def test_events_of_which_two_belong_together_are_never_taken_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "SLICE_BYTES", 1)
    plan = TaskPlan(RecordsPlan(Format.JSON, "none"), changes=ChangeSettings("datastream"))
    decoder = Mock(expansion=base.Expansion(1, 1, lambda payload, limit: 1))
    payloads, raw = pa.array([b"ab"] * 3), pa.table({"n": [1, 2, 3]})
    assert [len(some) for some, _ in decoding._slices(payloads, raw, decoder, plan)] == [3]
    others = replace(plan, changes=None)
    assert [len(some) for some, _ in decoding._slices(payloads, raw, decoder, others)] == [1, 1, 1]
