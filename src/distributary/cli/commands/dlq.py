"""The dead letters: what they are, and what becomes of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from distributary.cli.verb import (
    LOOK,
    MEND,
    DryRun,
    FileOption,
    GroupPage,
    Invocation,
    Lake,
    PipelineName,
    Reason,
    Type,
    Yes,
    complete_letters,
    show_help,
    verb,
)

app = typer.Typer(
    help="The dead letters: list, show, replay, discard.",
    cls=GroupPage,
    callback=show_help,
    invoke_without_command=True,
)


class Shown(StrEnum):
    """Which dead letters are listed."""

    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    ALL = "all"


Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="First seen then or later: 2026-01-31T12:00Z, or 2h ago."
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="First seen before that time.")
]
Offset = Annotated[
    str | None,
    typer.Option(
        "--offset", metavar="PLACE", help="TOPIC/PARTITION/OFFSET, or a stretch: topic/0/10-20."
    ),
]
Id = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="The one whose id begins like this.")
]


@verb(app, name="list", panel=LOOK, examples=["distributary dlq list --lake distributary-demo"])
def list_letters(
    call: Invocation,
    status: Annotated[Shown, typer.Option("--status", help="Which ones.")] = Shown.OPEN,
    reason: Reason = None,
    type: Type = None,
    lake: Lake = None,
    pipeline: PipelineName = None,
) -> None:
    """Reasons with counts, times, and an id to look at."""
    from distributary.cli.actions.dlq import list_reasons

    list_reasons(call, status=status, reason=reason, type=type, lake=lake, pipeline=pipeline)


@verb(app, panel=LOOK, examples=["distributary dlq show wrapper/0/2821 --lake distributary-demo"])
def show(
    call: Invocation,
    id: Annotated[
        str,
        typer.Argument(
            help="The id, how it begins, or TOPIC/PARTITION/OFFSET.",
            autocompletion=complete_letters,
        ),
    ],
    lake: Lake = None,
    file: FileOption = None,
) -> None:
    """The whole record, its bytes, and as much as can be decoded."""
    from distributary.cli.actions.mend import show_letter

    show_letter(call, id, lake=lake, file=file)


@verb(
    app,
    panel=MEND,
    examples=[
        "distributary dlq replay --reason UNKNOWN_SCHEMA_ID --dry-run --lake distributary-demo",
    ],
)
def replay(
    call: Invocation,
    reason: Reason = None,
    type: Type = None,
    since: Since = None,
    until: Until = None,
    offset: Offset = None,
    id: Id = None,
    lake: Lake = None,
    pipeline: PipelineName = None,
    file: FileOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Send dead letters through the pipeline once more.

    Each reaches its table exactly once, and no other reader of the topic sees anything of it.
    """
    from distributary.cli.actions.dlq import Selection
    from distributary.cli.actions.mend import replay_letters

    wanted = Selection.of(
        reason=reason, type=type, since=since, until=until, offset=offset, id=id, pipeline=pipeline
    )
    return replay_letters(call, wanted, lake=lake, file=file, dry_run=dry_run, yes=yes)


@verb(
    app,
    panel=MEND,
    examples=[
        "distributary dlq discard --reason NULL_VALUE --note 'tests' --dry-run "
        "--lake distributary-demo"
    ],
)
def discard(
    call: Invocation,
    note: Annotated[str, typer.Option("--note", help="Why they are given up.")],
    reason: Reason = None,
    type: Type = None,
    since: Since = None,
    until: Until = None,
    offset: Offset = None,
    id: Id = None,
    lake: Lake = None,
    pipeline: PipelineName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Give dead letters up, and say why. The records stay where they are."""
    from distributary.cli.actions.dlq import Selection, discard_letters

    wanted = Selection.of(
        reason=reason, type=type, since=since, until=until, offset=offset, id=id, pipeline=pipeline
    )
    return discard_letters(call, wanted, note=note, lake=lake, dry_run=dry_run, yes=yes)
