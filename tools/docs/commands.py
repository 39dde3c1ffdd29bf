"""The reference of the command line, read from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from distributary.cli.command.verb import DEPLOY, FIX, LOOK, RUN, START
from distributary.cli.command_line import PROGRAM, application

_GROUPS = (START, RUN, LOOK, FIX, DEPLOY)
_SHARED = "Output"
"""The heading, on help pages, of the options that every command has."""

_INTRODUCTION = """\
# Commands

Every command that prints data prints [one JSON document](../output.md) with `--json`; every one
that changes or deletes takes `--dry-run`. The [exit code](../exit-codes.md) of a command is its
result for scripts. The examples work when pasted after `distributary demo games`; those about
`shop_` tables after `distributary demo cdc`.
"""


@dataclass(frozen=True, slots=True)
class Verb:
    """A command that can be typed."""

    name: str
    """What stands after the program's name: `dlq replay`."""
    group: str
    command: Any

    @property
    def examples(self) -> list[str]:
        """The lines that its help page shows."""
        return re.findall(r"^\s+(distributary .*)$", self.command.epilog or "", re.MULTILINE)

    def rows(self, *, shared: bool) -> list[tuple[str, str]]:
        """Its parameters as the help page has them: those of every command, or its own."""
        context = typer.Context(self.command, info_name=f"{PROGRAM} {self.name}")
        found = [
            param.get_help_record(context)
            for param in self.command.params
            if (param.rich_help_panel == _SHARED) is shared
        ]
        return [record for record in found if record is not None]

    def usage(self) -> str:
        """The line that says what goes where."""
        context = typer.Context(self.command, info_name=f"{PROGRAM} {self.name}")
        return " ".join([PROGRAM, self.name, *self.command.collect_usage_pieces(context)])


def verbs() -> list[Verb]:
    """Every command, in the order of the help page."""
    return sorted(
        _below(typer.main.get_command(application())), key=lambda verb: _GROUPS.index(verb.group)
    )


def page() -> str:
    """The page as Markdown."""
    return "\n".join(_lines(verbs())).rstrip() + "\n"


def _below(node: Any, path: tuple[str, ...] = (), group: str = "") -> Iterator[Verb]:
    below = getattr(node, "commands", None)
    if below is None:
        yield Verb(" ".join(path), group, node)
        return
    for name, command in below.items():
        if not command.hidden:
            yield from _below(command, (*path, name), group or command.rich_help_panel)


def _lines(every: list[Verb]) -> Iterator[str]:
    yield _INTRODUCTION
    yield "Every command also has:\n"
    yield from _table("option", every[0].rows(shared=True))
    for group in _GROUPS:
        yield f"\n## {group}"
        for verb in every:
            if verb.group == group:
                yield from _section(verb)


def _section(verb: Verb) -> Iterator[str]:
    yield f"\n### {verb.name}\n"
    # a form feed ends what a help page shows
    yield escaped((verb.command.help or "").partition("\f")[0].replace("\b\n", "").strip())
    yield f"\n```text\n{verb.usage()}\n```\n"
    if rows := verb.rows(shared=False):
        yield from _table("argument or option", rows)
    yield "\n```console"
    yield from (f"$ {line}" for line in verb.examples)
    yield "```"


def _table(title: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    yield f"| {title} | |"
    yield "|---|---|"
    for names, text in rows:
        yield f"| `{names}` | {cell(text)} |"


def cell(text: str) -> str:
    """Text that may stand in a table and is not taken for markup."""
    return escaped(" ".join(text.split()))


def escaped(text: str) -> str:
    """Text in which nothing is markup but what stands between backticks."""
    outside_and_inside = re.split(r"(`[^`\n]*`)", text)
    return "".join(
        part if index % 2 else re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", part)
        for index, part in enumerate(outside_and_inside)
    )
