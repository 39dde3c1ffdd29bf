"""`dlq list` and `dlq discard`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distributary.cli.actions.confirm import confirmed
from distributary.cli.actions.selection import Selection
from distributary.cli.lakes import Lake, find_lake
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, cut, listed, number, since
from distributary.observe.deadletters import DeadLetters, Reason
from distributary.observe.letter_tables import letter_tables

_LONGEST = 40
"""Of a type's name: records may claim any, and one must not push the others off the screen."""


def letters_in(lake: Lake, pipeline: str | None = None) -> dict[str, DeadLetters]:
    """The dead letters of each pipeline that is meant."""
    name = pipeline or lake.pipeline
    return letter_tables(lake.path, pipeline=name, storage_options=lake.options)


def list_reasons(
    call: Invocation,
    *,
    status: str,
    reason: str | None,
    type: str | None,
    lake: str | None,
    pipeline: str | None,
) -> None:
    """Dead letters by reason."""
    found = find_lake(call, lake)
    wanted = None if status == "all" else status
    reasons = [
        (name, _only(each, type))
        for name, letters in letters_in(found, pipeline).items()
        for each in letters.reasons(status=wanted, pipeline=name)
        if reason in (None, each.code) and (type is None or type in each.types)
    ]
    reasons.sort(key=lambda pair: (-pair[1].count, pair[1].code))
    total = sum(each.count for _, each in reasons)
    data = {
        "lake": found.path,
        "status": str(status),
        "total": total,
        "reasons": [{"pipeline": name, **_as_dict(each)} for name, each in reasons],
    }
    call.out.show(data, lambda paper: _draw(paper, [r for _, r in reasons], str(status), found))


def discard_letters(
    call: Invocation,
    wanted: Selection,
    *,
    note: str,
    lake: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Mark dead letters as given up."""
    found = find_lake(call, lake)
    ids = {
        name: wanted.letters(letters, pipeline=name, columns=("id",))["id"].to_pylist()
        for name, letters in letters_in(found, wanted.pipeline).items()
    }
    count = sum(map(len, ids.values()))
    letters = counted(count, "dead letter")
    ask = not dry_run and count > 0 and wanted.is_everything
    if ask and not confirmed(call, f"Discard all {letters}?", yes=yes, evidence=letters):
        return 1
    discarded = 0
    if not dry_run:
        tables = letters_in(found, wanted.pipeline)
        discarded = sum(tables[name].discard(some, note=note) for name, some in ids.items() if some)
    data = {"dry_run": dry_run, "selected": count, "discarded": discarded, "note": note}
    text = f"{letters} would be discarded" if dry_run else f"{discarded:,} discarded"
    call.out.show(data, lambda paper: paper.line(text))
    return 0


def _only(reason: Reason, type: str | None) -> Reason:
    if type is None:
        return reason
    return replace(reason, count=reason.types[type], types={type: reason.types[type]})


def _as_dict(reason: Reason) -> dict[str, object]:
    return {
        "code": reason.code,
        "count": reason.count,
        "first_seen": reason.first_seen,
        "last_seen": reason.last_seen,
        "example": reason.example,
        "types": reason.types,
    }


def _draw(paper: Paper, reasons: Sequence[Reason], status: str, lake: Lake) -> None:
    if not reasons:
        paper.line("no dead letters" if status == "all" else f"no {status} dead letters")
        return
    paper.table(
        ("REASON", "COUNT", "FIRST SEEN", "LAST SEEN", "EXAMPLE", "TYPES"),
        (
            (
                styled(r.code, "bold"),
                number(r.count),
                since(r.first_seen),
                since(r.last_seen),
                r.example,
                listed((cut(name or "unknown", _LONGEST) for name in r.types), most=3),
            )
            for r in reasons
        ),
        right=("COUNT",),
        indent=0,
    )
    paper.line(counted(sum(r.count for r in reasons), "dead letter"))
    paper.line(styled(f"distributary dlq show {reasons[0].example}{lake.flag}", "dim"))
