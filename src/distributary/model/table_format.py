"""The table of table formats: what each can do, and the module that reads and writes it.

A new format is its implementation in `publish/formats/`, and one entry here. What a format cannot
do is said by its entry, so that no other module has to know which format it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from distributary.model.refusal import Refusal


@dataclass(frozen=True, slots=True)
class TableFormat:
    """The abilities of the tables of one format."""

    module: str
    """The module with its `ENTRY`, which reads and writes it, imported when it is used."""
    label: str
    """The words for one table: `a plain Parquet table`."""
    replaces_rows: bool = False
    """Whether rows can be changed and removed, as change data needs it."""
    has_versions: bool = False
    """Whether readers can open a table at an older version, as cuts need it."""
    lists_commits: bool = False
    """Whether other jobs can read the table commit by commit, as shards read bronze."""
    spark_writes: bool = False
    """Whether `tables.publisher: spark` can write it."""
    partitions: bool = True
    """Whether it can be partitioned."""
    partitions_in_log: bool = False
    """Whether the log holds the values of partition columns, so that files must not."""
    stages_apart: bool = False
    """Whether readers see every file of the folder, so that staged files wait outside."""
    in_buckets: bool = True
    """Whether the lake may be in a bucket."""
    widens_all: bool = True
    """Whether a column can take every wider type."""
    mirrored: bool = False
    """Whether Iceberg can show its files by metadata beside them, as `lake.iceberg` says."""
    own_catalog: bool = False
    """Whether each table needs an entry in the format's own catalog, `lake.iceberg`."""
    registered_as_view: bool = False
    """Whether a catalog of tables by name holds a view on the files in place of a table."""
    storage: tuple[str, str] | None = None
    """The storage layer and the file format, as lineage names them; None for none."""
    kept_elsewhere: str = ""
    """The system that maintains its tables in place of `maintain`; empty if `maintain` does."""
    expires_elsewhere: str = ""
    """The advice in place of `maintain.every`; empty if this setting is allowed."""
    no_rewrites: str = ""
    """The reason why maintenance must not rewrite its files; empty if it may."""
    no_backup: Refusal | None = None
    """The reason why a backup cannot copy its tables; None if it can."""
    no_live_backup: str = ""
    """The reason why a backup needs stopped pipelines; empty if it does not."""


DELTA = "delta"
"""The format of dead letters and of the ledger, which need rows that change."""

TABLE_FORMATS: Mapping[str, TableFormat] = {
    DELTA: TableFormat(
        module="distributary.publish.formats.delta_format",
        label="a Delta table",
        replaces_rows=True,
        has_versions=True,
        lists_commits=True,
        spark_writes=True,
        partitions_in_log=True,
        mirrored=True,
        storage=("delta", "parquet"),
    ),
    "parquet": TableFormat(
        module="distributary.publish.formats.parquet_format",
        label="a plain Parquet table",
        stages_apart=True,
        registered_as_view=True,
        no_rewrites="its readers would see rows twice, or not at all",
        no_live_backup="which has no versions",
    ),
    "iceberg": TableFormat(
        module="distributary.publish.formats.iceberg_format",
        label="an Iceberg table",
        partitions=False,
        in_buckets=False,
        widens_all=False,
        own_catalog=True,
        kept_elsewhere="is for Iceberg's own tools",
        expires_elsewhere="expire their snapshots with Spark or Trino",
        no_backup=Refusal(
            "its metadata names the lake's own address",
            "stop the pipeline and copy the lake, the checkpoint and the catalog with the tools of "
            "the file system, to be put back in the same place",
        ),
    ),
}
"""The table formats by the value of `tables.format`."""


def formats_with(can: Callable[[TableFormat], bool]) -> str:
    """Return the names of the formats that can do something: `delta or iceberg`."""
    return " or ".join(name for name, format_ in TABLE_FORMATS.items() if can(format_))
