"""The dead letters of a whole lake: every pipeline has a table of them, or shares one."""

from __future__ import annotations

from typing import Any

from distributary.errors import DistributaryError, ErrorCode
from distributary.model.table import Role
from distributary.observe import layout
from distributary.observe.deadletters import DeadLetters
from distributary.observe.delta import StorageOptions
from distributary.observe.ledger import Ledger


def letter_tables(
    lake: str, *, pipeline: str | None = None, storage_options: StorageOptions | None = None
) -> dict[str, DeadLetters]:
    """The dead letters of each pipeline of a lake; two pipelines may share a table."""
    ledger = Ledger(lake, storage_options=storage_options)
    found = {}
    for table in ledger.tables(pipeline, schema_ids=False):
        if table.role == Role.DEAD_LETTERS:
            path = layout.place(lake, table.path)
            found[table.pipeline] = DeadLetters(path, storage_options=storage_options)
    return found


def find_letter(tables: dict[str, DeadLetters], id: str, *, lake: str) -> dict[str, Any]:
    """The one dead letter of a lake whose id begins like this."""
    failure: DistributaryError | None = None
    for letters in {each.path: each for each in tables.values()}.values():
        try:
            return letters.get(id)
        except DistributaryError as error:
            failure = error
    raise failure or DistributaryError(
        "there are no dead letters in this lake", code=ErrorCode.NOT_FOUND, where=lake
    )
