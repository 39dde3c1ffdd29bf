"""The help pages: plain text in groups, made without anything that takes long to import."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_WHOLE = 1000
"""Letters: the first sentence of any command, wrapped and never cut off."""
_EXAMPLE = re.compile(r"^ +distributary .*$", re.MULTILINE)


def _write_groups(formatter: Any, rows: list[tuple[str, tuple[str, str]]]) -> None:
    """Names with their explanations, under the heading that each asks for."""
    for title in dict.fromkeys(heading for heading, _ in rows):
        with formatter.section(title):
            formatter.write_dl([row for heading, row in rows if heading == title])


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    found = [(param, param.get_help_record(ctx)) for param in command.get_params(ctx)]
    usual = {"argument": "Arguments", "option": "Options"}
    rows = [
        (getattr(param, "rich_help_panel", None) or usual[param.param_type_name], record)
        for param, record in found
        if record is not None
    ]
    _write_groups(formatter, sorted(rows, key=lambda row: row[0] not in usual.values()))


def _leave_as_typed(command: Any, ctx: Any) -> None:
    """For the Tab key: values need no checking, and what Typer checks them with takes 0.1 s."""
    if ctx.resilient_parsing:
        for parameter in command.get_params(ctx):
            parameter.process_value = lambda _, value: value


class CommandPage(TyperCommand):
    """The page of one command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What was typed; as it is, while it is still being typed."""
        _leave_as_typed(self, ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, options, and then what every command has."""
        _write_parameters(self, ctx, formatter)


class GroupPage(TyperGroup):
    """The page of several commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What was typed; as it is, while it is still being typed."""
        _leave_as_typed(self, ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """What can be done goes before how it can be said."""
        self.format_commands(ctx, formatter)
        _write_parameters(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands in their groups, one sentence each."""
        longest = max((len(name) for name in self.list_commands(ctx)), default=0)
        rows = [
            (
                getattr(command, "rich_help_panel", None) or "Commands",
                (f"{command.name or '':{longest}}", command.get_short_help_str(_WHOLE)),
            )
            for command in self._shown(ctx)
        ]
        _write_groups(formatter, rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """What was written for it, else the first example of each of its commands."""
        if self.epilog:
            super().format_epilog(ctx, formatter)
            return
        found = (_EXAMPLE.search(command.epilog or "") for command in self._shown(ctx))
        lines = [match[0] for match in found if match]
        title = "Example:" if len(lines) == 1 else "Examples:"
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n".join(["\b", title, *lines]))

    def _shown(self, ctx: Any) -> list[Any]:
        found = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        return [command for command in found if command is not None and not command.hidden]


def show_help(ctx: typer.Context) -> None:
    """What a group of commands does when none of them is named."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
