"""Tables as an earlier version wrote them: columns, files and marks in Iceberg's metadata alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType

from distributary.catalog.iceberg_catalog import open_catalog
from distributary.config.lake import LakeConfig
from distributary.delta.commit import APP, BATCH, facts_in
from distributary.delta.damage import TAG
from distributary.delta.log import data_file, load
from distributary.delta.log_reading import actions_in, commit_name
from distributary.delta.tables import arrow_schema, open_table
from distributary.iceberg.mirror import EARLIER, MAPPING
from distributary.model.manifest import compact
from distributary.store.base import at


def as_earlier(folder: str | Path, lake: LakeConfig) -> int:
    """Write the commits of a Delta table as an earlier version would have; return its version.

    Commits without files are left out, and the Delta log is removed.
    """
    store = at(str(folder))
    state = load(store)
    assert state is not None
    delta = open_table(str(folder))
    assert delta is not None
    columns = pa.schema(
        [
            field.with_metadata({"doc": (field.metadata or {}).get(b"comment", b"")})
            for field in arrow_schema(delta)
        ]
    )
    kept = {
        f["name"]: {name: value for name, value in f["metadata"].items() if name != "comment"}
        for f in state.fields
    }
    created = {
        "format-version": "2",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "100",
        EARLIER: json.dumps({name: value for name, value in kept.items() if value}),
        "comment": str(state.metadata.get("description") or ""),
    }
    name = (lake.iceberg_catalog.namespace, Path(folder).name)
    with open_catalog(lake) as catalog:
        catalog.create_namespace_if_not_exists(name[0])
        begun = False
        for version in range(state.version + 1):
            actions = actions_in(store.read(commit_name(version)))
            files = [data_file(action["add"]) for action in actions if "add" in action]
            if not files:
                continue
            if begun:
                transaction = catalog.load_table(name).transaction()
            else:
                transaction = catalog.create_table_transaction(
                    name, columns, location=str(folder), properties=created
                )
                mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
                transaction.set_properties({MAPPING: mapping})
                begun = True
            info: dict[str, Any] = next(a["commitInfo"] for a in actions if "commitInfo" in a)
            facts = {
                key: str(value)
                for key, value in facts_in(info).items()
                if key.startswith("distributary.")
            }
            facts[TAG] = compact({file.path: file.checksum for file in files})
            with transaction.update_snapshot(snapshot_properties=facts).merge_append() as append:
                for file in files:
                    schema = transaction.table_metadata.schema()
                    append.append_data_file(_described(str(folder), file, schema))
            if APP in facts:
                transaction.set_properties({f"{BATCH}.{facts[APP]}": facts[BATCH]})
            transaction.commit_transaction()
        table = catalog.load_table(name)
    for gone in ("_delta_log", "_iceberg"):
        shutil.rmtree(f"{folder}/{gone}", ignore_errors=True)
    return int(table.metadata.last_sequence_number)


def _described(folder: str, file: Any, schema: Any) -> DataFile:
    statistics = file.statistics()
    lowest, highest, nulls = {}, {}, {}
    for field in schema.fields:
        ends = [statistics.get(side, {}).get(field.name) for side in ("minValues", "maxValues")]
        if isinstance(field.field_type, IntegerType) and None not in ends:
            lowest[field.field_id], highest[field.field_id] = (
                to_bytes(field.field_type, end) for end in ends
            )
            nulls[field.field_id] = statistics["nullCount"][field.name]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{folder}/{unquote(file.path)}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=file.written,
        file_size_in_bytes=file.size,
        value_counts=dict.fromkeys(nulls, file.written) or None,
        null_value_counts=nulls or None,
        lower_bounds=lowest or None,
        upper_bounds=highest or None,
        sort_order_id=None,
        spec_id=0,
    )
