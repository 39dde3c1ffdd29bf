"""Dead letters that would decode now, because the schema they waited for has appeared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from distributary.model.deadletter import MAY_HEAL
from distributary.model.plan import Route
from distributary.model.record import RAW
from distributary.registry.base import has_schema
from distributary.run.pipeline import Pipeline
from distributary.run.removal import dead_letters_of
from distributary.stage.group import positions
from distributary.stage.parts import failures
from distributary.stage.unwrap import unwrap

_SAMPLE = 1000


@dataclass(frozen=True, slots=True)
class Healing:
    """How many open dead letters would be rows now."""

    count: int = 0
    by_reason: Mapping[str, int] = field(default_factory=dict)


def healable(pipeline: Pipeline) -> Healing:
    """Try a sample of each schema's letters; count all of a schema whose sample decodes."""
    letters = dead_letters_of(pipeline)
    registry = pipeline.registry()
    found: Counter[str] = Counter()
    for reason in sorted(MAY_HEAL):
        table = letters.select(reason=reason, pipeline=pipeline.config.name)
        for schema_id in table["schema_id"].unique().to_pylist():
            if schema_id is None or registry is None or not has_schema(registry, schema_id):
                continue
            same = table.filter(pa.compute.equal(table["schema_id"], schema_id))
            sample = same.slice(0, _SAMPLE)
            share = _decodes(pipeline, sample) / sample.num_rows
            found[str(reason)] += round(same.num_rows * share)
    return Healing(sum(found.values()), {k: v for k, v in found.items() if v})


def _decodes(pipeline: Pipeline, letters: pa.Table) -> int:
    raw = letters.select(RAW.names).cast(RAW).combine_chunks().to_batches()[0]
    planner = pipeline.planner(trial=True)
    unwrapped = unwrap(raw, planner.catalog())
    groups = planner.groups(raw, unwrapped)
    catalog = planner.catalog()
    records = 0
    for key, rows in zip(groups.keys, positions(groups.codes, len(groups.keys)), strict=True):
        route = catalog.routes[key]
        if isinstance(route, Route):
            payloads = unwrapped.payloads.take(pa.array(rows))
            same = pa.Table.from_batches([raw.take(pa.array(unwrapped.rows[rows]))])
            records += len(rows) - failures(payloads, same, route, catalog)
    return records
