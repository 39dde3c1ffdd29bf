"""The same records for every case: many games, four versions of each in flight, shuffled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from distributary.registry.files import FileRegistry
from distributary.simulate.delta import DeltaSink
from distributary.simulate.games import GamesPlan, stream_rounds

VERSIONS = 4
FILES_PER_BATCH = 4


def make(folder: Path, *, tables: int, batches: int, records: int) -> None:
    """A source table whose first commit is small (it creates the tables), then whole batches."""
    registry = FileRegistry(folder / "schemas", durable=False)
    per_version = -(-records * batches // (tables * VERSIONS))
    plan = GamesPlan(games=tables, versions=VERSIONS, records=per_version, seed=1)
    rounds = [batch for one in stream_rounds(plan, registry=registry) for batch in one.arrow()]
    messages = pa.Table.from_batches(rounds)
    order = np.random.default_rng(1).permutation(messages.num_rows)
    first = _one_of_each(plan)
    sink = DeltaSink(
        str(folder / "lake" / "wrapper"), records_per_file=-(-records // FILES_PER_BATCH)
    )
    sink.write_arrow(messages.take(pa.array(first)).to_batches())
    for number in range(batches):
        chosen = order[number * records : (number + 1) * records]
        sink.write_arrow(messages.take(pa.array(chosen)).combine_chunks().to_batches())


def _one_of_each(plan: GamesPlan) -> list[int]:
    """One record of every game and version: what a long-running pipeline has seen before."""
    size = plan.games * plan.records
    return [version * size + game for version in range(VERSIONS) for game in range(plan.games)]


def write_pipeline(folder: Path, *, publisher: str, records: int) -> Path:
    """The pipeline file of a case."""
    path = folder / f"{publisher}.yaml"
    path.write_text(
        f"""
name: bench-{publisher}
source:
  {{type: delta, path: {folder}/lake/wrapper, value: wrapper, max_records_per_batch: {records}}}
registry: {{path: {folder}/schemas}}
envelope: {{format: protobuf, subject: wrapper-value, type: game_name, payload: payload}}
payload: {{format: protobuf}}
tables: {{each: "silver_{{type}}", publisher: {publisher}}}
lake: {{path: {folder}/{publisher}}}
spark: {{master: "local[2]", driver_memory: 4g}}
"""
    )
    return path
