"""The program: its commands, its help page, and its exit codes."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Annotated, NoReturn

import typer

from distributary.cli.command.verb import (
    STOPPED_BY_KEY,
    STOPPED_BY_SIGNAL,
    GroupPage,
    option,
    show_help,
)
from distributary.engine.worker import keep_pandas_out
from distributary.errors import ConfigError
from distributary.threads import end_process

PROGRAM = "distributary"
_VERSION = "--version"

_EPILOG = """\
\b
Exit codes:
  0    done
  1    the command ran, and found a problem
  2    the command line or the pipeline file is wrong
  75 try again later: source, registry or lake does not answer, or another process runs
  130  stopped by Ctrl-C
  143  stopped by SIGTERM

Every command takes --json, -q, -v and --debug. There is no telemetry."""

VERBS: Mapping[str, Sequence[str]] = {
    "init:app": ["init"],
    "run:app": ["run", "up"],
    "run:pipelines_app": ["pipelines"],
    "inspect.status:app": ["status"],
    "inspect.tables:app": ["tables"],
    "inspect.query:app": ["query", "head"],
    "inspect.cuts:app": ["cuts"],
    "plan:app": ["validate", "plan"],
    "doctor:app": ["doctor"],
    "doctor:explain_app": ["explain"],
    "inspect.trace:app": ["trace"],
    "inspect.messages:app": ["messages"],
    "upkeep.verify:app": ["verify"],
    "ui_metrics:app": ["metrics", "ui"],
    "inspect.schema:app": ["schema"],
    "upkeep.dlq:app": ["dlq"],
    "ui_metrics:alerts_app": ["alerts"],
    "upkeep.source_comparison:app": ["snapshot"],
    "upkeep.pause:app": ["pause", "continue"],
    "upkeep.repair:app": ["resume", "rebuild", "reset", "recover", "clean"],
    "upkeep.maintain:app": ["maintain"],
    "upkeep.erase:app": ["erase"],
    "upkeep.backup:app": ["backup", "restore"],
    "upkeep.iceberg:app": ["iceberg"],
    "install:app": ["install", "uninstall", "package"],
    "grants:app": ["grants"],
}
"""The modules that declare the commands, in the order of the help page."""

PLUGGED = "distributary.commands"
"""The group of entry points by which a package adds commands: a verb, and its Typer app."""


def application(verb: str | None = None) -> typer.Typer:
    """Build the program; for one verb, import its module only: all take a sixth of a second."""
    found = typer.Typer(
        name=PROGRAM,
        cls=GroupPage,
        epilog=_EPILOG,
        # rich takes longer to import than everything else together
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    found.callback(invoke_without_command=True)(_root)
    if verb == _VERSION:
        return found
    own = [place for place, verbs in VERBS.items() if verb in verbs]
    # entry points are searched for in the files of all packages: never for a verb of the core
    plugged = [] if own or verb is None else _plugged(verb)
    if not own and not plugged:
        own, plugged = list(VERBS), _plugged()
    for place in own:
        module, _, name = place.partition(":")
        found.add_typer(getattr(import_module(f"distributary.cli.{module}"), name))
    for app in plugged:
        found.add_typer(app)
    return found


def _plugged(verb: str | None = None) -> list[typer.Typer]:
    """Load the commands of other packages, or only the one that was typed.

    Raise ConfigError if the typed command cannot be loaded. The list of all leaves out broken
    packages, so that the help page still works.
    """
    # the import takes as long as a small command
    from importlib.metadata import entry_points

    points = entry_points(group=PLUGGED) if verb is None else entry_points(group=PLUGGED, name=verb)
    apps = []
    for point in sorted(points, key=lambda point: point.name):
        try:
            apps.append(point.load())
        except Exception as error:
            if verb is None:
                continue
            raise ConfigError(
                f"the command {verb} cannot be loaded",
                where=f"{point.value}, of the package {point.dist.name if point.dist else '?'}",
                evidence=f"{type(error).__name__}: {error}",
                next_step="install the package again, or remove it",
            ) from error
    return apps


def _print_versions(asked: bool) -> None:
    if asked:
        from distributary.cli.doctor import versions

        for part, version in versions().items():
            print(f"{part} {version}")
        raise typer.Exit


def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        option(
            _VERSION,
            "Print the versions of all parts, for a bug report.",
            callback=_print_versions,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """One stream of mixed, evolving messages in; one always-current table per type out.

    Begin with: distributary demo games
    """
    show_help(ctx)


_ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL"


def return_freed_memory(given: Sequence[str]) -> None:
    """Have Arrow give freed memory of a run back, unless the user has chosen its allocator.

    Arrow's default allocator keeps memory for each thread, also after the end of the thread. Every
    batch has threads of its own, so the memory of a run would grow for hours. The workers, which
    have few threads, keep the default. Call this before anything imports Arrow.
    """
    # builds of Arrow for other systems may lack this allocator, and say so on standard error
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names or "pyarrow" in sys.modules:
        return
    if list(given[:1]) != ["run"] or _ALLOCATOR in os.environ:
        return
    os.environ[_ALLOCATOR] = "jemalloc"
    try:
        # Arrow reads the variable once, when it is loaded
        import_module("pyarrow")
    finally:
        del os.environ[_ALLOCATOR]


_LOOKS = ("status", "trace", "tables", "schema")
"""Verbs that look at a lake once and end."""
_LOOKING_COLLECTS = 200_000
"""After so many new objects a process that only looks searches for garbage; others after 700."""


def _start_quickly(given: Sequence[str]) -> None:
    """Leave out of a short process what only a long one needs.

    Imports make hardly any garbage, and searching for it at each 700th object takes a twentieth of
    what `status` takes. pydantic would search all packages for plugins.
    """
    if given and given[0] in _LOOKS:
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        gc.set_threshold(_LOOKING_COLLECTS)


def program() -> NoReturn:
    """Run the command of this process, and end the process with its exit code."""
    keep_pandas_out()
    _start_quickly(sys.argv[1:])
    return_freed_memory(sys.argv[1:])
    try:
        code = main()
    except SystemExit as error:
        # a signal has ended the command
        code = error.code if isinstance(error.code, int) else 1
    if "pyarrow" not in sys.modules:
        sys.exit(code)
    end_process(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _leave_no_core()
    try:
        with _children_import_safely(), _ended_by_signal():
            verb = next((w for w in given if w == _VERSION or not w.startswith("-")), None)
            code = application(verb)(given, prog_name=PROGRAM, standalone_mode=False)
    except typer.TyperException as error:
        return _refuse(error, given)
    except ConfigError as error:
        return _report(error, given)
    except (KeyboardInterrupt, typer.Abort):
        return STOPPED_BY_KEY
    return code if isinstance(code, int) else 0


def _leave_no_core() -> None:
    """Disable core dumps: the memory of a command and of its JVM holds passwords."""
    if not os.environ.get("DISTRIBUTARY_CORE_DUMPS"):
        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def _refuse(error: typer.TyperException, given: Sequence[str]) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    wrong = ConfigError(error.format_message(), where="command line", next_step=f"{path} --help")
    return _report(wrong, given)


def _report(error: ConfigError, given: Sequence[str]) -> int:
    from distributary.cli.command.log_file import LogFile, report
    from distributary.cli.command.output import Output

    output = Output(as_json="--json" in given, debug="--debug" in given)
    return report(output, error, LogFile("usage"))


@contextmanager
def _children_import_safely() -> Iterator[None]:
    """Prevent child processes from importing code from the working folder, such as a lake."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """End the command by an exception on SIGTERM, so that everything is closed."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(STOPPED_BY_SIGNAL)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
