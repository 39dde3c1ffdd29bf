"""`backup` and `restore`: copies of a lake and of its pipelines' progress that belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from distributary.cli.command.lakes import find_lake, load_file
from distributary.cli.command.output import Paper, counted, duration, size
from distributary.cli.command.verb import (
    FIX,
    DryRun,
    Invocation,
    LakeOption,
    argument,
    option,
    single,
    verb,
)
from distributary.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    from distributary.operations.backup.points import Point


app = single(FIX)

_FILES = (".yaml", ".yml")
_REPORT_EVERY = 100
"""Tables between two lines of progress."""
_SHOWN = 20


@verb(
    app,
    "backup distributary-demo/games.yaml ./backup",
    "backup --lake distributary-demo ./backup --dry-run",
)
def backup(
    call: Invocation,
    targets: Annotated[
        list[str],
        argument(
            "Pipeline files, unless --lake names the lake; then the folder or address of the "
            "backup.",
            metavar="[FILE]... BACKUP",
            show_default=False,
        ),
    ],
    lake: LakeOption = None,
    dry_run: DryRun = False,
) -> int:
    """Copy a lake and the progress of its pipelines, also while they run.

    Each backup to the same place is a restore point. It copies only the files that the place does
    not have yet.
    """
    files, to = _split(call, targets, last=True)
    pipelines = _pipelines(call, files)
    found = find_lake(call, lake, files[0] if files else None)
    _same_lake(found.path, pipelines)
    _introduce(to, pipelines)
    from distributary.operations.backup.take import take_backup

    taken = take_backup(
        found.path,
        to,
        {one.name: one.checkpoint for one in pipelines},
        dry_run=dry_run,
        on_table=_progress_reporter(call),
    )
    point = taken.point
    data = {
        "lake": found.path,
        "backup": to,
        "dry_run": dry_run,
        "point": None if dry_run else point.id,
        **_described(point),
        "seconds": round(taken.seconds, 3),
        "retries": taken.retries,
    }

    def draw(paper: Paper) -> None:
        totals, would = point.totals, "would be " if dry_run else ""
        _draw_pipelines(paper, point)
        paper.line(
            f"{counted(len(point.tables), 'table')}, {counted(totals['files'], 'file')}, "
            f"{size(totals['bytes'])}; {would}copied: {counted(totals['copied_files'], 'file')}, "
            f"{size(totals['copied_bytes'])}; {duration(taken.seconds)}"
        )
        if not dry_run:
            paper.line(f"restore point {point.id} in {to}")

    call.out.show(data, draw)
    return 0


@verb(
    app,
    "restore ./backup --list",
    "restore ./backup --lake ./lake-of-yesterday --dry-run",
)
def restore(
    call: Invocation,
    targets: Annotated[
        list[str],
        argument(
            "Folder or address of the backup; then pipeline files, which name the new places of "
            "lake and checkpoint.",
            metavar="BACKUP [FILE]...",
            show_default=False,
        ),
    ],
    lake: LakeOption = None,
    at: Annotated[
        str | None,
        option("--at", "The restore point; by default the newest.", metavar="ID"),
    ] = None,
    list_points: Annotated[bool, option("--list", "Only list the restore points.")] = False,
    dry_run: DryRun = False,
) -> int:
    """Restore a backup into an empty place.

    The next run continues where the pipeline was at the time of the backup. The same command
    finishes a restore that was interrupted.
    """
    files, source = _split(call, targets, last=False)
    pipelines = _pipelines(call, files)
    _introduce(source, pipelines)
    if list_points:
        return _list(call, source)
    if not lake and not pipelines:
        raise call.usage("name the pipeline file, or the lake with --lake.")
    from distributary.operations.backup.restore import choose_point
    from distributary.operations.backup.restore import restore as put_back
    from distributary.store.base import absolute

    place = absolute(lake) if lake else pipelines[0].lake
    _same_lake(place, pipelines)
    done = put_back(
        source,
        choose_point(source, at),
        place,
        {one.name: one.checkpoint for one in pipelines},
        files={one.name: one.file for one in pipelines},
        dry_run=dry_run,
        on_table=_progress_reporter(call),
    )
    point = done.point
    data = {
        "lake": place,
        "backup": source,
        "dry_run": dry_run,
        "point": point.id,
        "continued": done.continued,
        "checkpoints": dict(done.checkpoints),
        **_described(point),
        "files": done.files,
        "bytes": done.bytes,
        "copied_files": done.copied_files,
        "seconds": round(done.seconds, 3),
    }

    def draw(paper: Paper) -> None:
        _draw_pipelines(paper, point)
        verb = "would be put back to" if dry_run else "put back to"
        paper.line(
            f"restore point {point.id}: {counted(len(point.tables), 'table')}, "
            f"{counted(done.files, 'file')}, {size(done.bytes)} {verb} {place}; "
            f"{duration(done.seconds)}"
        )

    call.out.show(data, draw)
    return 0


@dataclass(frozen=True, slots=True)
class _Named:
    """The addresses in a pipeline file."""

    name: str
    file: str
    lake: str
    checkpoint: str
    options: Mapping[str, str]


def _split(call: Invocation, targets: Sequence[str], *, last: bool) -> tuple[list[Path], str]:
    """Separate the pipeline files from the address of the backup."""
    from distributary.store.base import absolute

    files = [Path(text) for text in targets if text.lower().endswith(_FILES)]
    places = [text for text in targets if not text.lower().endswith(_FILES)]
    if len(places) != 1 or places[0] != (targets[-1] if last else targets[0]):
        order = "pipeline files, then the backup" if last else "the backup, then pipeline files"
        raise call.usage(f"name {order}.")
    return files, absolute(places[0])


def _pipelines(call: Invocation, files: Sequence[Path]) -> list[_Named]:
    from distributary.store.base import absolute, introduce

    found: list[_Named] = []
    for file in files:
        config = load_file(call, file, needs=("lake",)).config
        lake, options = config.lake, config.lake.options
        checkpoint = absolute(config.checkpoint_path)
        for place in (lake.address, checkpoint):
            introduce(place, options)
        path = str(file.resolve())
        found.append(_Named(config.name, path, lake.address, checkpoint, options))
    return found


def _introduce(place: str, pipelines: Sequence[_Named]) -> None:
    """Reach the backup with the settings of the lake, where it is in a bucket too."""
    from distributary.store.base import introduce

    options = next((one.options for one in pipelines if one.options), None)
    if options is not None:
        introduce(place, options)


def _same_lake(lake: str, pipelines: Sequence[_Named]) -> None:
    from distributary.store.base import same_place

    for one in pipelines:
        if not same_place(one.lake, lake):
            raise ConfigError(
                f"pipeline {one.name} has another lake",
                code=ErrorCode.CONFIG_INVALID,
                where=one.file,
                evidence=f"{one.lake} instead of {lake}",
                next_step="name files of one lake only",
            )


def _progress_reporter(call: Invocation) -> Any:
    def show_progress(table: str, done: int, total: int) -> None:
        call.out.step(f"{done:,} of {total:,}: {table}")
        if done % _REPORT_EVERY == 0 and done < total:
            call.out.note(f"{done:,} of {counted(total, 'table')}")

    return show_progress


def _described(point: Point) -> dict[str, Any]:
    return {
        "taken_at": point.taken_at,
        "pipelines": {
            one.name: {"settled": dict(one.settled), "under_way": dict(one.under_way)}
            for one in point.pipelines
        },
        "tables": {table.state.folder: table.state.version for table in point.tables},
        "parked": len(point.parked),
        "totals": dict(point.totals),
    }


def _draw_pipelines(paper: Paper, point: Point) -> None:
    for one in point.pipelines[:_SHOWN]:
        settled = one.settled.get("stream", -1)
        text = f"up to batch {settled}" if settled >= 0 else "before its first batch"
        if "stream" in one.under_way:
            text += f"; batch {one.under_way['stream']} is under way, the next run finishes it"
        paper.line(f"{one.name}: {text}")
    paper.more(len(point.pipelines) - _SHOWN, "pipeline")


def _list(call: Invocation, source: str) -> int:
    from distributary.operations.backup.points import point_ids, read_point
    from distributary.store.base import at

    store = at(source)
    points = [read_point(store, id) for id in point_ids(store)]
    listed = [{"point": point.id, **_described(point)} for point in points]

    def draw(paper: Paper) -> None:
        rows = [
            (
                point.id,
                str(len(point.tables)),
                size(point.totals["bytes"]),
                ", ".join(f"{p.name} {p.settled.get('stream', -1)}" for p in point.pipelines),
            )
            for point in points[-_SHOWN:]
        ]
        paper.table(("POINT", "TABLES>", "SIZE>", "BATCHES"), rows, indent=0)
        paper.more(len(points) - _SHOWN, "older restore point")

    call.out.show({"backup": source, "points": listed}, draw)
    return 0
