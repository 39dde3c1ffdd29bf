"""The columns of tables as OpenLineage tells them: their types, and the fields that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
from openlineage.client.facet_v2 import column_lineage_dataset, schema_dataset

from distributary.evolve.types import is_list, is_struct, sql_name
from distributary.model.table import Column, Origin
from distributary.observe.lineage_names import Dataset

MOST_TOPICS = 5
"""A field that may come from more topics than these is told of none: that would say nothing."""
_MOST_FIELDS = 200
"""Fields that a column is said to hold; `_rest` of a thousand types has more than anybody reads."""
_MOST_SCHEMA_FIELDS = 5000

Clean = Callable[[str], str]
"""Takes secrets out of a text."""
Fields = Mapping[str, tuple[Origin, ...]]
"""By column: the fields whose values it holds."""


def schema_facet(columns: Sequence[Column], clean: Clean) -> schema_dataset.SchemaDatasetFacet:
    """Names, types and comments."""
    fields = [
        schema_dataset.SchemaDatasetFacetFields(
            column.name,
            sql_name(column.type),
            clean(column.comment) or None,
            position,
            _inside(column.type),
        )
        for position, column in enumerate(columns, 1)
    ]
    return schema_dataset.SchemaDatasetFacet(fields)


def column_lineage(
    columns: Sequence[Column], origins: Fields, inputs: Mapping[str, Dataset]
) -> column_lineage_dataset.ColumnLineageDatasetFacet:
    """Which fields of which topics each column holds; the engine's own columns hold none."""
    direct = [column_lineage_dataset.Transformation("DIRECT", "IDENTITY")]
    fields: dict[str, column_lineage_dataset.Fields] = {}
    for column in columns:
        found = [
            column_lineage_dataset.InputField(
                inputs[name].namespace, inputs[name].name, origin.field, direct
            )
            for origin in origins.get(column.name, ())[:_MOST_FIELDS]
            for name in _topics(origin, inputs)
        ]
        if found:
            fields[column.name] = column_lineage_dataset.Fields(found)
    return column_lineage_dataset.ColumnLineageDatasetFacet(fields)


def fields_by_topic(
    every: Iterable[Fields], inputs: Mapping[str, Dataset]
) -> dict[str, tuple[str, ...]]:
    """Every field that some column holds; nothing of a topic that has too many to be told."""
    found: dict[str, dict[str, None]] = {}
    for each in every:
        for origins in each.values():
            for origin in origins:
                for name in _topics(origin, inputs):
                    found.setdefault(name, {})[origin.field] = None
    return {name: tuple(f) for name, f in found.items() if len(f) <= _MOST_SCHEMA_FIELDS}


def _inside(type_: pa.DataType) -> list[schema_dataset.SchemaDatasetFacetFields]:
    below = type_.value_type if is_list(type_) else type_
    if not is_struct(below):
        return []
    return [
        schema_dataset.SchemaDatasetFacetFields(f.name, sql_name(f.type), fields=_inside(f.type))
        for f in below
    ]


def _topics(origin: Origin, inputs: Mapping[str, Dataset]) -> Iterable[str]:
    if origin.topic in inputs:
        return (origin.topic,)
    return inputs if len(inputs) <= MOST_TOPICS else ()
