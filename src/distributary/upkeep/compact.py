"""Small files of one table become large ones; rows, columns, marks and order stay what they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from distributary.publish.columns import UnsupportedTypeError
from distributary.publish.races import OvertakenError
from distributary.upkeep.choose import Bin, Sizes, bins
from distributary.upkeep.rewrite import stored_schema, write_together
from distributary.upkeep.state import TableState, follow
from distributary.upkeep.swap import BusyError, Exchange, Swap, drop, exchange

_COMMIT_BYTES = 2**30
"""Of files that are replaced: then a commit is made, so that little is lost when it is killed."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compaction did to a table, or would do."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    """Not known before it is done: the same as before then."""
    rows: int = 0
    """Rows that were written again."""
    version: int | None = None
    """Of the table, by its last commit; None: nothing was committed."""
    seconds: float = 0.0
    left: str = ""
    """Why something that could be put together was not."""


@dataclass(frozen=True, slots=True)
class Manners:
    """How much compaction may ask of others who write to the table."""

    ready: Callable[[], None] = field(default=lambda: None)
    patient: bool = True


def planned(state: TableState, sizes: Sizes) -> Compacted | None:
    """What could be put together; None where there is nothing."""
    found = bins(state.files.values(), sizes)
    if not found:
        return None
    after = len(state.files) - sum(len(each) - 1 for each in found)
    return Compacted(len(state.files), after, state.bytes, state.bytes)


def compact(
    state: TableState, sizes: Sizes, manners: Manners | None = None
) -> tuple[TableState, Compacted | None]:
    """Put small files together; None where there is nothing to do.

    Raises UnsupportedTypeError for a table with columns that cannot be written again, and OSError.
    """
    found = bins(state.files.values(), sizes)
    if not found:
        return state, None
    started = time.perf_counter()
    manners = manners or Manners()
    about = Exchange("OPTIMIZE", False, manners.ready, manners.patient)
    before, now = state, state
    done: list[Swap] = []
    left = ""
    try:
        for share in _shares(found):
            swaps = _written(now, share, manners)
            now, swapped = exchange(now, swaps, about)
            done += swapped
            if len(swapped) < len(share):
                left = "another writer replaced some of its files meanwhile"
    except (BusyError, OvertakenError) as error:
        left = str(error) or "other writers were faster"
    return now, Compacted(
        files_before=len(before.files),
        files_after=len(before.files) - sum(len(swap.removed) - 1 for swap in done),
        bytes_before=before.bytes,
        bytes_after=before.bytes - sum(_saved(swap) for swap in done),
        rows=sum(swap.added.rows for swap in done if swap.added),
        version=now.version if done else None,
        seconds=time.perf_counter() - started,
        left=left,
    )


def refusal(state: TableState) -> str:
    """Why this table cannot be compacted; empty when it can."""
    beyond = state.beyond_us()
    if beyond:
        return f"needs another engine, {beyond}"
    try:
        stored_schema(state)
    except UnsupportedTypeError as error:
        return str(error)
    return ""


def _shares(found: Sequence[Bin]) -> Iterator[list[Bin]]:
    share: list[Bin] = []
    for each in found:
        share.append(each)
        if sum(file.size for files in share for file in files) >= _COMMIT_BYTES:
            yield share
            share = []
    if share:
        yield share


def _written(state: TableState, share: Sequence[Bin], manners: Manners) -> list[Swap]:
    manners.ready()
    schema = stored_schema(state)
    swaps: list[Swap] = []
    try:
        for files in share:
            made = _together(state, files, schema)
            swaps += [] if made is None else [made]
    except BaseException:
        drop(state.folder, swaps)
        raise
    return swaps


def _together(state: TableState, files: Bin, schema: pa.Schema) -> Swap | None:
    try:
        return Swap(files, write_together(state, files, schema).file)
    except FileNotFoundError:
        newest = follow(state).files
        if all(file.path in newest for file in files):
            raise
        # replaced, and cleaned away, since the table was looked at
        return None


def _saved(swap: Swap) -> int:
    return sum(file.size for file in swap.removed) - (swap.added.size if swap.added else 0)
