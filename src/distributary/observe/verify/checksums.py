"""Compares the data files of a table with their checksums. Every byte is read.

A file with a checksum is compared with it. A file without one was
written by another engine, or by a version without checksums: all of its columns are read to the
end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from distributary.delta.damage import damage_in, damaged
from distributary.delta.tables import reaching_table
from distributary.errors import LakeUnavailableError, PublishError
from distributary.observe.verify.row_counts import (
    TableCheck,
    TableFinding,
    WrittenTable,
    mend,
    unreadable,
)
from distributary.publish.formats.table_format_entry import open_written
from distributary.publish.formats.written import KnownFile
from distributary.store.base import Store, at

_READERS = 4
"""Files that are read side by side."""
_SHOWN = 20


def check_files(known: WrittenTable, check: TableCheck) -> TableCheck:
    """Return the same check with the results for the bytes of all files."""
    if check.version is None:
        return check
    try:
        with reaching_table(known.path):
            return _checked(known, check)
    except (LakeUnavailableError, PublishError) as error:
        return check.with_more(findings=[unreadable(known, error)])


def _checked(known: WrittenTable, check: TableCheck) -> TableCheck:
    table = open_written(known.path)
    if table is None:
        return check
    store = at(known.path)
    if (found := table.log_damage()) is not None:
        raise damaged(store.address, *found)
    files = _there(store, table.contents())
    broken = [*_damaged(store, files), *(f"{path}: {why}" for path, why in table.broken_vectors())]
    check = check.with_more(compared=["bytes of files"])
    without = sum(file.checksum is None for file in files)
    if without:
        note = "they were read in full, which does not notice a value that is only another one"
        check = check.with_more(notes=[f"files without a checksum: {without:,}; {note}"])
    if not broken:
        return check
    more = [f"and {len(broken) - _SHOWN:,} more"] if len(broken) > _SHOWN else []
    evidence = "; ".join([*broken[:_SHOWN], *more])
    what = f"files that are damaged: {len(broken):,}"
    return check.with_more(findings=[TableFinding("damaged", what, evidence, mend(known))])


def _there(store: Store, files: Sequence[KnownFile]) -> list[KnownFile]:
    """Return the files that are there with their size; others have a finding already."""
    size_of = store.sizes()
    return [file for file in files if size_of(file.path) == file.size]


def _damaged(store: Store, files: Sequence[KnownFile]) -> Iterator[str]:
    def look(file: KnownFile) -> str | None:
        found = damage_in(store, file.path, size=file.size, expected=file.checksum)
        return found and f"{file.path}: {found}; it held {file.held}"

    with ThreadPoolExecutor(_READERS) as pool:
        yield from filter(None, pool.map(look, files))
