"""Which files of a table are put together. Pure.

Only neighbours become one file, in their own order: a file goes on holding one stretch of time, so
that readers can skip it, and the order in which a table was written can still be told from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from distributary.upkeep.state import DataFile

Bin = tuple[DataFile, ...]

_ALMOST = 0.75
"""A file of this part of the target is as large as it should be."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """When files are too small, and how large they should be."""

    target: int
    min_files: int


def bins(files: Iterable[DataFile], sizes: Sizes) -> list[Bin]:
    """Files to be put together, each group into one."""
    groups: dict[tuple[object, ...], list[DataFile]] = {}
    for file in in_order(list(files)):
        kind = file.path.rpartition("/")[2].partition("-")[0]
        groups.setdefault((kind, tuple(sorted(file.values.items()))), []).append(file)
    found = (run for group in groups.values() for run in _runs(group, sizes))
    return [each for each in found if len(each) >= max(2, sizes.min_files)]


def in_order(files: Sequence[DataFile]) -> list[DataFile]:
    """As they were written: by their batches if all of them tell, else by their times."""
    batches = [_batch(file) for file in files]
    known = all(batch is not None for batch in batches)
    keys = [
        (batch if known and batch is not None else 0, file.modified_ms, file.path)
        for file, batch in zip(files, batches, strict=True)
    ]
    return [files[at] for at in sorted(range(len(files)), key=keys.__getitem__)]


def _batch(file: DataFile) -> int | None:
    found = (file.told().get("minValues") or {}).get("_batch")
    return found if isinstance(found, int) else None


def _runs(group: Sequence[DataFile], sizes: Sizes) -> Iterator[Bin]:
    """Small files that follow each other, cut where they make a large one."""
    run: list[DataFile] = []
    size = 0
    for file in group:
        if run and (file.size >= sizes.target * _ALMOST or size + file.size > sizes.target):
            yield _worth_it(run)
            run, size = [], 0
        if file.size < sizes.target * _ALMOST:
            run.append(file)
            size += file.size
    yield _worth_it(run)


def _worth_it(run: Sequence[DataFile]) -> Bin:
    """Without what was put together before, as long as that is larger than all that came since.

    Else each turn would write the same rows again: so a row is written a few times in all.
    """
    kept, rest = list(run), sum(file.size for file in run)
    while kept and kept[0].size * 2 > rest:
        rest -= kept.pop(0).size
    return tuple(kept)
