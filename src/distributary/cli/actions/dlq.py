"""`dlq list` and `dlq discard`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pydantic_core import PydanticCustomError

from distributary.cli.lakes import Lake, find_lake
from distributary.cli.logs import usage_error
from distributary.cli.output import Paper, confirmed, counted, cut, listed, number, since, styled
from distributary.cli.verb import Invocation
from distributary.config.base import parse_duration, parse_moment
from distributary.observe.deadletters import DeadLetters, Reason, letter_tables

# Which dead letters are meant.

_COMMAND = "distributary dlq replay"


@dataclass(frozen=True, slots=True)
class Selection:
    """Everything that is given must hold."""

    reason: str | None = None
    type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    topic: str | None = None
    partition: int | None = None
    offsets: int | tuple[int, int] | None = None
    id: str | None = None
    pipeline: str | None = None

    @classmethod
    def of(
        cls,
        *,
        reason: str | None,
        type: str | None,
        since: str | None,
        until: str | None,
        offset: str | None,
        id: str | None,
        pipeline: str | None,
    ) -> Selection:
        """From what was typed."""
        topic, partition, offsets = _stretch(offset) if offset else (None, None, None)
        return cls(
            reason=reason,
            type=type,
            since=_moment(since),
            until=_moment(until),
            topic=topic,
            partition=partition,
            offsets=offsets,
            id=id,
            pipeline=pipeline,
        )

    @property
    def is_everything(self) -> bool:
        """Whether nothing narrows it down."""
        named = (self.reason, self.type, self.since, self.until, self.topic, self.id)
        return all(value is None for value in named)

    def of_pipeline(self, name: str) -> dict[str, Any]:
        """The arguments of `DeadLetters.select` for one pipeline."""
        return {
            "reason": self.reason,
            "type": self.type,
            "since": self.since,
            "until": self.until,
            "topic": self.topic,
            "partition": self.partition,
            "offsets": self.offsets,
            "pipeline": name,
        }

    def letters(
        self, source: DeadLetters, *, pipeline: str, columns: tuple[str, ...] | None = None
    ) -> pa.Table:
        """The open dead letters that are meant."""
        wanted = self.of_pipeline(pipeline)
        if self.id is not None:
            # what was typed may be the beginning of an id
            wanted["id"] = source.get(self.id)["id"]
        return source.select(**wanted, columns=columns)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.now(UTC) - parse_duration(text.removesuffix("ago").strip())
    except PydanticCustomError:
        pass
    try:
        return parse_moment(text)
    except PydanticCustomError:
        raise usage_error(
            f"{text!r} is neither a time such as 2026-01-31T12:00Z nor an age such as 2h.",
            command=_COMMAND,
        ) from None


def _stretch(text: str) -> tuple[str, int, int | tuple[int, int]]:
    parts = text.rsplit("/", 2)
    first, dash, last = parts[-1].partition("-")
    numbers = [*parts[1:2], first, *([last] if dash else [])]
    if len(parts) != 3 or not parts[0] or not all(number.isdecimal() for number in numbers):
        raise usage_error(
            f"{text!r} is not TOPIC/PARTITION/OFFSET, nor a stretch such as topic/0/10-20.",
            command=_COMMAND,
        )
    return parts[0], int(parts[1]), (int(first), int(last)) if dash else int(first)


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
