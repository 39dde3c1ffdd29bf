"""The owner's part of `resume`: publish what waits for a table, on its own or when asked."""

from __future__ import annotations

from pathlib import Path

from distributary.observe.ledger import Ledger
from distributary.publish.base import Published, Publisher
from distributary.publish.parking import resume as drain

_SUFFIX = ".resume"


def drained(publisher: Publisher, ledger: Ledger, folder: str, table: str) -> list[Published]:
    """Drain a table's queue and say so in the ledger."""
    return drain(
        publisher,
        folder=folder,
        table=table,
        on_published=lambda batch, result: ledger.record_resumed(
            batch.mark.app_id, batch.entry, result, batch=batch.mark.batch
        ),
    )


def requests(folder: str) -> list[str]:
    """Tables that somebody has asked the owner to resume."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in Path(folder).glob(f"*{_SUFFIX}"))


def answered(folder: str, table: str) -> None:
    """The owner has done what it could."""
    request_file(folder, table).unlink(missing_ok=True)


def request_file(folder: str, table: str) -> Path:
    """The file by which the owner is asked."""
    return Path(folder) / f"{table}{_SUFFIX}"
