"""What a task tells the driver about a file."""

from __future__ import annotations

import json

from distributary.model.manifest import StagedFile


def file_fact(table: str, records: int, staged: StagedFile | None) -> tuple[str, str]:
    """A file for the manifest; None stands for records that gave no row."""
    body = {"table": table, "records": records, "file": staged.as_dict() if staged else None}
    return "file", json.dumps(body, separators=(",", ":"))
