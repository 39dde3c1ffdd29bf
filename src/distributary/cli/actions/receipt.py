"""`status --receipt`: the page that is left for a ticket or an audit."""

from __future__ import annotations

from pathlib import Path

from distributary.cli.lakes import Lake
from distributary.cli.verb import Invocation
from distributary.observe.receipt import receipt, write_receipt
from distributary.observe.status import Status
from distributary.version import versions


def leave_receipt(call: Invocation, path: Path, now: Status, lake: Lake) -> dict[str, str]:
    """Writes the page of a status; where it is, and the fingerprint of what it tells."""
    made = receipt(now, versions=versions(), storage_options=lake.options, mask=call.out.mask)
    write_receipt(path, made)
    return {"receipt": str(path.absolute()), "receipt_sha256": made.sha256}
