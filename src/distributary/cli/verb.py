"""Declares a command: the flags that all have, its example, and what happens on failure."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distributary.cli.help import CommandPage

if TYPE_CHECKING:
    from distributary.cli.logs import LogFile
    from distributary.cli.output import Output

STOPPED_BY_KEY = 130
STOPPED_BY_SIGNAL = 143

START, RUN, LOOK, MEND, DEPLOY = "Start", "Run", "Look", "Mend", "Deploy"
"""The groups of the help page."""

_Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel="Output")
]
_Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel="Output")
]
_Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Say what is done; twice for Spark's log too.",
        rich_help_panel="Output",
    ),
]
_Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel="Output")
]

_COMMON = {"json": (_Json, False), "quiet": (_Quiet, False), "verbose": (_Verbose, 0)} | {
    "debug": (_Debug, False)
}

Action = Callable[..., int | None]


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a command's function is given besides its own parameters."""

    name: str
    out: Output
    log: LogFile


def verb(
    app: typer.Typer, *, panel: str | None = None, name: str | None = None, examples: Sequence[str]
) -> Callable[[Action], Action]:
    """Adds a function to an app. Its first parameter is the `Invocation`, its result the exit code.

    Args:
        app: where the command goes.
        panel: the group under which the help page lists it.
        name: what people type, when it is not the function's name.
        examples: lines that work when pasted after `distributary demo games`.
    """

    def declare(action: Action) -> Action:
        called = name or action.__name__
        signature = inspect.signature(action, eval_str=True)
        own = list(signature.parameters.values())[1:]

        def command(**given: Any) -> None:
            flags = {key: given.pop(key) for key in _COMMON}
            code = _invoke(called, action, given, **flags)
            if code:
                raise typer.Exit(code)

        common = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for key, (kind, default) in _COMMON.items()
        ]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + common
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = action.__doc__
        add = app.command(
            name=called, cls=CommandPage, rich_help_panel=panel, epilog=_epilog(examples)
        )
        add(command)
        return action

    return declare


def _epilog(examples: Sequence[str]) -> str:
    title = "Example:" if len(examples) == 1 else "Examples:"
    # the mark keeps the lines as they are: a command that was wrapped cannot be pasted
    return "\n".join(["\b", title, *(f"  {line}" for line in examples)])


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
    # not at the top of the file: help and completion need none of it
    from distributary.cli.failure import report
    from distributary.cli.logs import LogFile, logging_to
    from distributary.cli.output import QUIET, make_output

    output = make_output(as_json=json, verbosity=QUIET if quiet else verbose, debug=debug)
    invocation = Invocation(name, output, LogFile(name))
    with logging_to(invocation.log, lambda text: output.mask(text)):
        try:
            return action(invocation, **given) or 0
        except KeyboardInterrupt:
            output.note("stopped")
            return STOPPED_BY_KEY
        except BrokenPipeError:
            # whoever read this has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except Exception as error:
            return report(output, error, invocation.log)
