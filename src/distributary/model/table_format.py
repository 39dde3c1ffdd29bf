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
    stored_as: str = ""
    """The format in which its tables are written; empty for its own."""
    replaces_rows: bool = False
    """Whether rows can be changed and removed, as change data needs it."""
    has_versions: bool = False
    """Whether readers can open a table at an older version, as cuts need it."""
    lists_commits: bool = False
    """Whether other jobs can read the table commit by commit, as shards read bronze."""
    spark_writes: bool = False
    """Whether `tables.publisher: spark` can write it."""
    partitions_in_log: bool = False
    """Whether the log holds the values of partition columns, so that files must not."""
    stages_apart: bool = False
    """Whether readers see every file of the folder, so that staged files wait outside."""
    widens_all: bool = True
    """Whether a column can take every wider type."""
    mirrored: bool = False
    """Whether Iceberg can show its files by metadata beside them, as `lake.iceberg` says."""
    always_mirrored: bool = False
    """Whether every table has an Iceberg mirror, also where `lake.iceberg` is left out."""
    registered_as_view: bool = False
    """Whether a catalog of tables by name holds a view on the files in place of a table."""
    storage: tuple[str, str] | None = None
    """The storage layer and the file format, as lineage names them; None for none."""
    not_kept: str = ""
    """The reason why `maintain` leaves its tables alone; empty if it does not."""
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
        label="an Iceberg table of an earlier version",
        stored_as=DELTA,
        replaces_rows=True,
        has_versions=True,
        lists_commits=True,
        partitions_in_log=True,
        widens_all=False,
        mirrored=True,
        always_mirrored=True,
        not_kept="gets a Delta log with the next run of its pipeline",
        no_backup=Refusal(
            "it has no Delta log yet", "run its pipeline once, which gives it one, then back up"
        ),
    ),
}
"""The table formats by the value of `tables.format`."""


def stored_format(name: str) -> str:
    """Return the format in which the tables of `tables.format: name` are written."""
    return TABLE_FORMATS[name].stored_as or name


def formats_with(can: Callable[[TableFormat], bool]) -> str:
    """Return the names of the formats that can do something: `delta or iceberg`."""
    return " or ".join(name for name, format_ in TABLE_FORMATS.items() if can(format_))
