"""`erase`: records leave every layer of a lake, and do not come back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from distributary.cli.command.lakes import find_lake
from distributary.cli.command.output import Paper, confirmed, counted, number, size, styled
from distributary.cli.command.verb import (
    FIX,
    DryRun,
    FileOption,
    Invocation,
    LakeOption,
    Yes,
    option,
    single,
    verb,
)

if TYPE_CHECKING:
    from distributary.operations.erase import ErasableRows, FoundTable


app = single(FIX)


@verb(app, "erase --where \"user_id = 'x'\" --lake distributary-demo --dry-run")
def erase(
    call: Invocation,
    where: Annotated[
        str | None,
        option("--where", "The rows to erase, in SQL: user_id = 'x'.", metavar="CONDITION"),
    ] = None,
    keys: Annotated[
        Path | None,
        option(
            "--keys",
            "A CSV file: column names in the first line, then one key per line.",
            metavar="FILE",
        ),
    ] = None,
    raw: Annotated[
        bool,
        option(
            "--raw",
            "Also erase records that are in no table with these columns, and whose bytes hold one "
            "of the values: dead letters, filtered records.",
        ),
    ] = False,
    lake: LakeOption = None,
    file: FileOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Erase records from every layer, so that they do not come back.

    The condition is evaluated in all tables with its columns; the records that it finds are also
    removed from bronze, the unified table and the dead letters. The pipelines of the lake must not
    run meanwhile. An erasure that was killed is finished by the next one, and by the next run.
    """
    from distributary.operations import erase as erasing

    if (where is None) == (keys is None):
        raise call.usage("use --where or --keys, not both.")
    condition = erasing.where(where) if where is not None else erasing.keys_in(keys or Path())
    place = find_lake(call, lake, file).path
    if dry_run:
        found = erasing.find(place, condition, raw=raw)
        call.out.show(_document(place, found), lambda paper: _draw(paper, found))
        return 0
    if not yes:
        found = erasing.find(place, condition, raw=raw)
        erasing.refuse(found)
        rows = counted(found.rows, "row")
        agreed = confirmed(
            call,
            f"Erase {rows} for ever?",
            yes=yes,
            evidence=f"{rows} of {counted(len(found.records), 'record')}",
            draw=lambda paper: _draw(paper, found),
        )
        if not agreed:
            return 0
    found, certificate = erasing.erase(place, condition, raw=raw)
    data = _document(place, found) | {"dry_run": False, "certificate": certificate}

    def draw(paper: Paper) -> None:
        _draw(paper, found, done=True)
        paper.line(f"certificate {certificate['id']}; `distributary verify --all --deep` checks it")

    call.out.show(data, draw)
    return 0


def _document(lake: str, found: ErasableRows) -> dict[str, Any]:
    return {
        "lake": lake,
        "dry_run": True,
        "rows": found.rows,
        "records": len(found.records),
        "remembered_values": sum(len(values.digests) for values in found.values),
        "raw_records": found.raw,
        "tables": [
            {
                "table": one.table.table,
                "role": one.table.role,
                "pipelines": list(one.table.pipelines),
                "path": one.table.folder,
                "rows": one.rows,
                "files": one.files,
                "bytes": one.bytes,
                "by_condition": one.by_condition,
                "refused": one.refused,
                "files_deleted_after": one.deleted_after,
                "held_by": list(one.held_by),
            }
            for one in found.tables
        ],
        "notes": list(found.notes),
    }


def _draw(paper: Paper, found: ErasableRows, *, done: bool = False) -> None:
    shown = [one for one in found.tables if one.rows or one.refused]
    if shown:
        headers = ("TABLE", "LAYER", "ROWS>", "FILES>", "SIZE>", "FILES ARE DELETED AFTER")
        paper.table(headers, map(_cells, shown), indent=0)
    for one in shown:
        if one.refused:
            where = f"  {one.table.table}: {one.refused}"
            paper.line(styled("cannot be erased", "bold red"), where)
    for why in sorted({why for one in shown for why in one.held_by}):
        paper.line(styled(f"files stay for longer: {why}", "yellow"))
    for note in found.notes:
        paper.line(styled(note, "dim"))
    what = "erased" if done else "would be erased"
    records = counted(len(found.records), "record")
    paper.line(f"{counted(found.rows, 'row')} of {records} {what}")
    if shown:
        paper.line(styled("backups, copies, Kafka and other sources are not reached", "dim"))


def _cells(one: FoundTable) -> tuple[str, ...]:
    after = "" if one.deleted_after is None else f"{one.deleted_after:%Y-%m-%d %H:%M} UTC"
    names = (one.table.table, one.table.role)
    return *names, number(one.rows), number(one.files), size(one.bytes), after
