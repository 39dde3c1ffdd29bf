"""What a task tells the driver about a file."""

from __future__ import annotations

import json
from dataclasses import fields

from distributary.model.manifest import StagedFile

_NAMES = tuple(field.name for field in fields(StagedFile))


def file_fact(table: str, records: int, staged: StagedFile | None) -> tuple[str, str]:
    """A file for the manifest; None stands for records that gave no row."""
    body = {"table": table, "records": records, "file": _fields(staged) if staged else None}
    return "file", json.dumps(body, separators=(",", ":"))


def _fields(staged: StagedFile) -> dict[str, object]:
    # not `asdict`, which copies every value: this happens once per table and batch
    return {name: getattr(staged, name) for name in _NAMES}
