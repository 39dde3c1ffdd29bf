"""Declaration of commands: the flags that all have, examples, completion, and errors."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer import Context
from typer.core import TyperCommand, TyperGroup

from distributary.errors import ConfigError, ErrorCode
from distributary.model import layout

if TYPE_CHECKING:
    from distributary.cli.command.log_file import LogFile
    from distributary.cli.command.output import Output


# Help pages: plain text in groups, drawn without modules that take long to import.

_WHOLE = 1000
"""Characters: more than the first sentence of any command, so that none is cut off."""
_EXAMPLE = re.compile(r"^ +distributary .*$", re.MULTILINE)


def _write_groups(formatter: Any, rows: list[tuple[str, tuple[str, str]]]) -> None:
    """Write names with their explanations, each under its heading."""
    for title in dict.fromkeys(heading for heading, _ in rows):
        with formatter.section(title):
            formatter.write_dl([row for heading, row in rows if heading == title])


_NUMBER, _TEXT = re.compile(r"<(int|float)( range)?>"), re.compile(r"<(str|list\[str\])>")


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    usual = {"argument": "Arguments", "option": "Options"}
    rows = [
        (
            getattr(param, "rich_help_panel", None) or usual[param.param_type_name],
            (_in_words(record[0]), record[1]),
        )
        for param in command.get_params(ctx)
        if (record := param.get_help_record(ctx)) is not None
    ]
    _write_groups(formatter, sorted(rows, key=lambda row: row[0] not in usual.values()))


def _in_words(name: str) -> str:
    """Replace the type in `--port <int range>` by a word: `--port <number>`."""
    return _TEXT.sub("<text>", _NUMBER.sub("<number>", name)).replace("<list[Path]>", "<path>")


def _leave_as_typed(command: Any, ctx: Any) -> None:
    """Leave values unchecked during completion: the import of Typer's checks takes 0.1 s."""
    if ctx.resilient_parsing:
        for parameter in command.get_params(ctx):
            parameter.process_value = lambda _, value: value


@dataclass(frozen=True, slots=True)
class _PlainValues:
    """The conversion of a parameter's values, without Typer's validators where none is needed.

    pydantic makes these, and importing it takes a tenth of a second of a core. A command with a
    pipeline file needs it anyway, one with only a lake does not.
    """

    validators: Callable[[], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a value that is missing, or of its kind already; validate all others."""
        kind = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is kind:
            return value
        if kind is Path and isinstance(value, str) and not _exists_unreadable(value):
            return Path(value)
        return self.validators().coerce(value, param=param, ctx=ctx)


def _validate_when_needed(command: Any, ctx: Any) -> None:
    for parameter in command.get_params(ctx):
        parameter.get_runtime_param = partial(_PlainValues, parameter.get_runtime_param)


def _exists_unreadable(path: str) -> bool:
    return os.path.exists(path) and not os.access(path, os.R_OK)


class CommandPage(TyperCommand):
    """The page of one command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; leave them unchanged during completion."""
        _validate_when_needed(self, ctx)
        _leave_as_typed(self, ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, then the options that every command has."""
        _write_parameters(self, ctx, formatter)


class GroupPage(TyperGroup):
    """The page of several commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; leave them unchanged during completion."""
        _validate_when_needed(self, ctx)
        _leave_as_typed(self, ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Print the commands before the options."""
        self.format_commands(ctx, formatter)
        _write_parameters(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in their groups, one sentence each."""
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
        """Print the group's examples, or else the first example of each of its commands."""
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


class ListingGroup(GroupPage):
    """The help page of a group of commands with the default command `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; insert `list` if no command is given."""
        alone = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if alone else args)


def show_help(ctx: typer.Context) -> None:
    """Print the help of a group when no command is given."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


STOPPED_BY_KEY = 130
STOPPED_BY_SIGNAL = 143

START, RUN, LOOK, FIX, DEPLOY = "Start", "Run", "Look", "Fix", "Deploy"
"""The groups of the help page."""


def option(names: str, help: str, **more: Any) -> Any:
    """Declare an option by its names: `--file -f`."""
    return typer.Option(*names.split(), help=help, **more)


def argument(help: str, **more: Any) -> Any:
    """Declare a positional argument."""
    return typer.Argument(help=help, **more)


def _flag(default: bool | int, names: str, help: str, **more: Any) -> inspect.Parameter:
    kind: Any = Annotated[type(default), option(names, help, rich_help_panel="Output", **more)]
    name = names.split()[0].removeprefix("--")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


_COUNT = {"count": True, "show_default": False}
_FLAGS = [
    _flag(False, "--json", "Print one JSON document."),
    _flag(False, "--quiet -q", "Print errors only."),
    _flag(0, "--verbose -v", "Log each step; -vv shows Spark's log as well.", **_COUNT),
    _flag(False, "--debug", "Show the traceback of an error."),
]

Action = Callable[..., int | None]


@dataclass(frozen=True, slots=True)
class Invocation:
    """The context of a command: its name, its output and its log file."""

    name: str
    """The command as typed: `dlq replay`."""
    out: Output
    log: LogFile

    def usage(self, message: str) -> ConfigError:
        """Return the error for a wrong command line."""
        next_step = f"distributary {self.name} --help"
        return ConfigError(message, where="command line", next_step=next_step)

    def seconds(self, option: str, text: str) -> float:
        """Parse the value of an option such as `10s` or `2h` into seconds."""
        from distributary.config.base import parse_duration

        try:
            return parse_duration(text).total_seconds()
        except ValueError as error:
            raise self.usage(f"{option} {error}.") from None


def single(panel: str) -> typer.Typer:
    """Create an app of commands without a group; `panel` is their heading on the help page."""
    app = typer.Typer()
    app.info.rich_help_panel = panel
    return app


def group(name: str, help: str, *, panel: str) -> typer.Typer:
    """Create a group of commands, such as `dlq`."""
    app = typer.Typer(
        name=name, help=help, cls=GroupPage, callback=show_help, invoke_without_command=True
    )
    app.info.rich_help_panel = panel
    return app


def verb(
    app: typer.Typer, *examples: str, name: str | None = None, panel: str | None = None
) -> Callable[[Action], Action]:
    """Add a function to an app. Its first parameter is the `Invocation`, its result the exit code.

    A parameter whose type is a dataclass declares one option for each field.

    Args:
        app: the app or group of the command.
        examples: commands without `distributary`, which work after `distributary demo games`.
        name: the command, if it is not the function's name.
        panel: the heading on the help page of a group that has several.
    """

    def declare(action: Action) -> Action:
        called = name or action.__name__
        in_group = bool(app.info.name)
        typed = f"{app.info.name} {called}" if in_group else called
        own = list(inspect.signature(action, eval_str=True).parameters.values())[1:]
        records: dict[str, Any] = {p.name: p.annotation for p in own if is_dataclass(p.annotation)}

        def command(**given: Any) -> None:
            flags = {flag.name: given.pop(flag.name) for flag in _FLAGS}
            for name, kind in records.items():
                given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            if code := _invoke(typed, action, given, **flags):
                raise typer.Exit(code)

        parameters = [each for p in own for each in _parameters(p)] + _FLAGS
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = action.__doc__
        app.command(
            name=called,
            cls=CommandPage,
            rich_help_panel=panel if in_group else app.info.rich_help_panel,
            epilog=_epilog(examples),
        )(command)
        return action

    return declare


def _parameters(own: inspect.Parameter) -> list[inspect.Parameter]:
    if not is_dataclass(own.annotation):
        return [own.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    kinds = get_type_hints(own.annotation, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=kinds[field.name],
        )
        for field in fields(own.annotation)
    ]


def _epilog(examples: Sequence[str]) -> str:
    title = "Example:" if len(examples) == 1 else "Examples:"
    # \b prevents wrapping: a wrapped command could not be pasted
    return "\n".join(["\b", title, *(f"  distributary {line}" for line in examples)])


def _invoke(
    name: str,
    action: Action,
    given: dict[str, Any],
    *,
    json: bool,
    quiet: bool,
    verbose: int,
    debug: bool,
) -> int:
    # imported here, because help and completion do not need it
    from distributary.cli.command.log_file import LogFile, logging_to, report
    from distributary.cli.command.output import QUIET, Output

    output = Output(as_json=json, verbosity=QUIET if quiet else verbose, debug=debug)
    invocation = Invocation(name, output, LogFile(name.rpartition(" ")[2]))
    with logging_to(invocation.log, lambda text: output.mask(text)):
        try:
            return action(invocation, **given) or 0
        except KeyboardInterrupt:
            output.note("stopped")
            return STOPPED_BY_KEY
        except BrokenPipeError:
            # the reader of the pipe has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except Exception as error:
            return report(output, error, invocation.log)


# Completion of names by the Tab key: quick, and silent about errors.

LAKE_VARIABLE = "DISTRIBUTARY_LAKE"
PLACES = ("./lake", "./distributary-demo", ".")
"""Folders to look for a lake in when none is named; the working folder is the last one."""
_TABLES = 'SELECT DISTINCT "table" AS name FROM rows'
_LABELS = "SELECT DISTINCT schema AS name FROM rows"
_LETTERS = "SELECT DISTINCT path AS name FROM rows WHERE role = 'dead_letters'"
_NEWEST = "SELECT id AS name FROM rows WHERE status = 'open' ORDER BY last_seen DESC LIMIT 100"
_REASONS = "SELECT DISTINCT error_code AS name FROM rows WHERE status = 'open'"
_FIRST_REASON = ErrorCode.NULL_VALUE


def complete_tables(ctx: Context, incomplete: str) -> list[str]:
    """Return the tables of the lake."""
    return _starting(incomplete, _names(layout.ledger_table(_lake(ctx), "tables"), _TABLES))


def complete_subjects(ctx: Context, incomplete: str) -> list[str]:
    """Return the subjects known to the ledger, or those of a folder; send no request."""
    place = str(ctx.params.get("registry") or "")
    if place:
        return _starting(incomplete, _subfolders(Path(place, "subjects")))
    lake = _lake(ctx)
    labels = [] if "://" in lake else _names(layout.ledger_table(lake, "schemas"), _LABELS)
    return _starting(incomplete, {label.rpartition(" v")[0] or label for label in labels})


def complete_schemas(ctx: Context, incomplete: str) -> list[str]:
    """Return tables and subjects."""
    return sorted({*complete_tables(ctx, incomplete), *complete_subjects(ctx, incomplete)})


def complete_letters(ctx: Context, incomplete: str) -> list[str]:
    """Return the ids of the newest open dead letters."""
    return _starting(incomplete, _in_letters(ctx, _NEWEST))


def complete_reasons(ctx: Context, incomplete: str) -> list[str]:
    """Return the reasons of the open dead letters, or all reasons if there are none."""
    found = _in_letters(ctx, _REASONS)
    codes = list(ErrorCode)
    return _starting(incomplete, found or map(str, codes[codes.index(_FIRST_REASON) :]))


def complete_pipelines(ctx: Context, incomplete: str) -> list[str]:
    """Return the pipelines that have run in the lake."""
    return _starting(incomplete, _subfolders(Path(layout.pipelines(_lake(ctx)))))


def _lake(ctx: Context) -> str:
    named = ctx.params.get("lake") or os.environ.get(LAKE_VARIABLE)
    usual = (place for place in PLACES if Path(place, layout.HOME).is_dir())
    return str(named or next(usual, PLACES[0]))


def _in_letters(ctx: Context, sql: str) -> set[str]:
    folders = _names(layout.ledger_table(_lake(ctx), "tables"), _LETTERS)
    return {name for folder in folders for name in _names(folder, sql)}


def _subfolders(folder: Path) -> list[str]:
    try:
        # names with a digest are internal
        return [path.name for path in folder.iterdir() if "~" not in path.name]
    except OSError:
        return []


def _names(table: str, sql: str) -> list[str]:
    # `observe` would take too long to import for a completion
    from deltalake import DeltaTable, QueryBuilder

    try:
        rows = QueryBuilder().register("rows", DeltaTable(table)).execute(sql).read_all()
        return [str(name) for name in rows["name"].to_pylist()]
    except Exception:
        # a traceback would be printed into the line that the user types
        return []


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


# Parameters that several commands share.

File = Annotated[Path, argument("The pipeline file.", metavar="FILE")]
OptionalFile = Annotated[Path | None, argument("The pipeline file (optional).", metavar="FILE")]
FileOption = Annotated[
    Path | None,
    option(
        "--file -f",
        "The pipeline file; needed if this user has not run the file since its last change.",
        metavar="FILE",
    ),
]
LakeOption = Annotated[
    str | None,
    option(
        "--lake",
        "The lake. Default: $DISTRIBUTARY_LAKE, ./lake, ./distributary-demo or the working folder.",
        metavar="DIR",
    ),
]
PipelineName = Annotated[
    str | None,
    option(
        "--pipeline",
        "Only this pipeline, if the lake has several.",
        metavar="NAME",
        autocompletion=complete_pipelines,
    ),
]
TableArgument = Annotated[
    str, argument("The name of a table.", metavar="TABLE", autocompletion=complete_tables)
]
AsOf = Annotated[
    str | None,
    option(
        "--as-of",
        "Only changes up to this time of the source: 2026-11-15T12:00:00Z; UTC without an offset.",
        metavar="TIME",
    ),
]
CutOption = Annotated[
    str | None,
    option(
        "--as-of",
        "The cut to read: a batch number (41, games:41) or a time. Default: the newest cut.",
        metavar="CUT",
    ),
]
DryRun = Annotated[bool, option("--dry-run", "Show what would be done, and change nothing.")]
Yes = Annotated[bool, option("--yes -y", "Do not ask for confirmation.")]
