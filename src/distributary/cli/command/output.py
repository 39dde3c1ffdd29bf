"""The output of commands: text for people, or one JSON document.

Data goes to standard output, everything else to standard error. Text is never interpreted as
markup, and control characters are escaped.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import typer

from distributary.cli.command.verb import Invocation
from distributary.errors import ConfigError, ErrorCode
from distributary.model.names import one_line
from distributary.observe.log_format import counted as counted
from distributary.observe.log_format import listed, plain
from distributary.observe.log_format import size as size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from distributary.observe.journal import Journal


_PROGRAM = "distributary"

# Confirmation before something is removed.


def confirmed(
    call: Invocation, question: str, *, yes: bool, evidence: str, draw: Draw | None = None
) -> bool:
    """Return whether the user confirms, by `--yes` or in a terminal.

    `draw` shows the planned action in a terminal; `evidence` describes it in one line.
    """
    if yes:
        return True
    if draw is not None:
        draw(call.out.margin)
    if not sys.stdin.isatty():
        raise ConfigError(
            "this needs a confirmation, and there is no terminal",
            code=ErrorCode.CONFIRMATION_NEEDED,
            evidence=evidence,
            next_step="add --yes, or --dry-run to see the effect",
        )
    agreed = typer.confirm(question, default=False, err=True)
    if not agreed:
        call.out.note("nothing was changed")
    return agreed


def program() -> str:
    """Return the command for this program: its name, or its path.

    The path is used if the name belongs to another program, as when `make` runs it out of a virtual
    environment that is not activated.
    """
    own = Path(sys.argv[0])
    if own.name != _PROGRAM:
        # started as a module, or by a test
        own = Path(sys.executable).with_name(_PROGRAM)
    found = shutil.which(_PROGRAM)
    if not own.is_file() or (found is not None and os.path.samefile(found, own)):
        return _PROGRAM
    path, here = own.absolute(), Path.cwd()
    if path.parent == here:
        return f"./{_PROGRAM}"
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


# Formatting of numbers, times and foreign text, without control sequences for terminals.

_MINUTE = 60.0
_HOUR, _DAY = 60 * _MINUTE, 24 * 60 * _MINUTE
_UNITS = (("s", 1.0, 2 * _MINUTE), ("min", _MINUTE, 2 * _HOUR), ("h", _HOUR, 2 * _DAY))
"""Units with their seconds, and the durations up to which they are used."""
_SHORT = 10
_NAMES = 3
"""The number of names of a source's table: database, schema and table."""


def spelled(type: str) -> str:
    """Format a type's name: `shop.orders` for the source's table `["shop","","orders"]`."""
    if not type.startswith("["):
        return type
    try:
        names = json.loads(type)
    except ValueError:
        return type
    parts = [name for name in names if isinstance(name, str) and name]
    return ".".join(parts) if len(names) == _NAMES else type


def number(value: float | None) -> str:
    """Format a number: `10,003`; a dash if it is unknown."""
    return "-" if value is None else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Format a duration: `0.4 s`, `2 minutes and 5 seconds`; a dash if it is unknown."""
    if seconds is None:
        return "-"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    import humanize

    whole = timedelta(seconds=round(seconds))
    if seconds < _MINUTE * _MINUTE:
        return humanize.precisedelta(whole, minimum_unit="seconds", format="%d")
    return humanize.naturaldelta(whole)


def brief(seconds: float | None) -> str:
    """Format a duration for narrow columns: `0.4 s`, `12 min`, `3.5 h`; a dash if it is unknown."""
    if seconds is None:
        return "-"
    size = abs(seconds)
    for unit, length, most in _UNITS:
        if size < most:
            value = seconds / length
            return f"{value:.1f} {unit}" if abs(value) < _SHORT else f"{value:,.0f} {unit}"
    return f"{seconds / _DAY:,.0f} d"


def ago(seconds: float | None) -> str:
    """Format the age of a moment: `3 minutes ago`; a dash for never."""
    if seconds is None:
        return "-"
    import humanize

    return "now" if seconds < 1 else f"{humanize.naturaldelta(timedelta(seconds=seconds))} ago"


def since(moment: datetime | None, *, now: datetime | None = None) -> str:
    """Return the age of a moment as text."""
    if moment is None:
        return "-"
    return ago(max(((now or datetime.now(UTC)) - moment).total_seconds(), 0.0))


def clock(moment: datetime | None, *, now: datetime | None = None) -> str:
    """Format a moment in this machine's time zone, with the day unless it is today."""
    if moment is None:
        return "-"
    local = moment.astimezone()
    today = (now or datetime.now(UTC)).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")


def tally(counts: Mapping[str, int], *, most: int = 8) -> str:
    """Format counts, the largest first: `silver_chess 400, silver_go 12`."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return listed((f"{name} {count:,}" for name, count in order), most=most)


QUIET, NORMAL, STEPS, EVERYTHING = -1, 0, 1, 2
"""`-q`, nothing, `-v` and `-vv`."""

READER_GONE = (BrokenPipeError, SystemExit)
"""Raised by printing when the reader of a pipe has gone; rich would end the program by itself."""

DOCUMENT_VERSION = 1
_UNLIMITED = 100_000
_NARROW = 20
"""The least width of a text column, however narrow the terminal is."""

Words: TypeAlias = "str | Text"


def styled(text: str, style: str) -> Text:
    """Return text of any origin in a colour."""
    from rich.text import Text

    return Text(one_line(text), style=style)


def as_text(words: Words) -> Text:
    """Return text of any origin as rich text, keeping its colour."""
    return styled(words, "") if isinstance(words, str) else words


def grid(headers: Sequence[str], rows: Iterable[Sequence[Words]], *, width: int = 0) -> Table:
    """Build a table without a frame; columns whose headers end with `>` are right-aligned."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    cells = [[as_text(cell) for cell in row] for row in rows]
    for at, header in enumerate(headers):
        number = header.endswith(">")
        longest = max((row[at].cell_len for row in cells if at < len(row)), default=0)
        table.add_column(
            header.removesuffix(">"),
            justify="right" if number else "left",
            overflow="ellipsis" if at else "fold",
            # first columns and numbers are not wrapped if they fit
            no_wrap=number or (at == 0 and longest <= width // 2),
        )
    for row in cells:
        table.add_row(*row)
    return table


class Paper:
    """A stream for output; without colour if that is not wanted, or if it is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        # imported here, because rich takes long to import
        from rich.console import Console

        self.fancy = _is_fancy(stream)
        """Whether it is a terminal with cursor movement and colours."""
        self.console = Console(
            file=stream,
            force_terminal=self.fancy,
            # a notebook would show an empty box for each line, beside the text of the stream
            force_jupyter=False,
            color_system="auto" if self.fancy else None,
            no_color=not self.fancy,
            # in a pipe nothing is wrapped or cut
            width=None if self.fancy else _UNLIMITED,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def line(self, *words: Words) -> None:
        """Print a line of several parts."""
        self._print(styled("", "").join(map(as_text, words)))

    def row(self, label: str, words: Words, *, width: int = 14) -> None:
        """Print a value with its label; nothing for an empty value.

        Further lines are indented below the first. A path that does not fit is not broken, so that
        it can be copied.
        """
        text, room = as_text(words), max(self.console.width - width - 2, _NARROW)
        for at, line in enumerate(text.divide(_breaks(text.plain, room)) if words else ()):
            name = styled(f"  {'' if at else label:{width}}", "dim")
            self._print(styled("", "").join((name, line)), whole=True)

    def more(self, count: int, noun: str = "", *, indent: str = "") -> None:
        """Print the number of items that are not shown, if there are any."""
        if count > 0:
            what = counted(count, f"more {noun}") if noun else f"{count:,} more"
            self.line(f"{indent}and {what}")

    def lines(self, text: str, *, indent: str = "") -> None:
        """Print a text of several lines."""
        for each in text.splitlines():
            self.line(f"{indent}{each}")

    def table(
        self, headers: Sequence[str], rows: Iterable[Sequence[Words]], *, indent: int = 2
    ) -> None:
        """Print columns under headers; a header of numbers ends with `>`."""
        self._print(grid(headers, rows, width=self.console.width), indent=indent)

    def _print(self, what: RenderableType, *, indent: int = 0, whole: bool = False) -> None:
        with self.console.capture() as drawn:
            if whole:
                self.console.print(what, no_wrap=True, overflow="ignore", crop=False)
            else:
                self.console.print(what, width=self.console.width - indent)
        # what is left of a table's last column
        for each in drawn.get().splitlines():
            self.console.file.write(f"{' ' * indent}{each}".rstrip() + "\n")
        self.console.file.flush()


def _breaks(text: str, room: int) -> list[int]:
    """Return the positions of words that do not fit on the line before."""
    from rich.cells import cell_len

    found: list[int] = []
    start = 0
    if cell_len(text) <= room:
        return found
    for word in re.finditer(r"\S+", text):
        if word.start() > start and cell_len(text[start : word.end()]) > room:
            start = word.start()
            found.append(start)
    return found


Draw = Callable[[Paper], None]


class Output:
    """The output of a command."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        verbosity: int = NORMAL,
        debug: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.is_json = as_json
        """Whether standard output is reserved for one document."""
        self.verbosity = verbosity
        self.debug = debug
        self.stdout = stdout or sys.stdout
        self.paper = Paper(self.stdout)
        self.margin = Paper(stderr or sys.stderr)
        self.mask: Callable[[str], str] = str
        """Masks the secrets of the pipeline in everything that is not data."""
        self.dashboard = ""
        """The address of the dashboard, if the pipeline file names it."""
        self.journal: Journal | None = None
        """The log on standard error that replaces text for people."""

    def show(self, data: Mapping[str, Any], draw: Draw) -> None:
        """Print the result: `data` as one JSON document, or as drawn by `draw`."""
        if self.is_json:
            # the version of the document comes first
            document = {"version": DOCUMENT_VERSION} | plain(data) | {"version": DOCUMENT_VERSION}
            self.stdout.write(json.dumps(document, indent=2) + "\n")
            self.stdout.flush()
        elif self.verbosity >= NORMAL:
            draw(self.paper)

    def show_error(self, error: Mapping[str, Any], draw: Draw) -> None:
        """Show an error: as the document, as a line of the log, or on standard error."""
        if self.is_json:
            self.show({"error": error}, draw)
        elif self.journal is not None:
            self.journal.say(str(error["what"]), event="error", level="ERROR", **error)
        else:
            draw(self.margin)

    @property
    def lively(self) -> bool:
        """Return whether to use a view that redraws itself."""
        alone = not self.is_json and self.journal is None
        return self.paper.fancy and alone and self.verbosity == NORMAL

    def note(self, text: str) -> None:
        """Print the current activity."""
        self._aside(text, self.mask(text), at=NORMAL)

    def step(self, text: str) -> None:
        """Print a detail of the current activity, with `-v`."""
        self._aside(text, styled(self.mask(text), "dim"), at=STEPS)

    def warn(self, text: str) -> None:
        """Print a warning, which does not stop the command."""
        words = (styled("warning: ", "yellow"), self.mask(text))
        self._aside(text, *words, at=NORMAL, level="WARNING")

    def _aside(self, text: str, *words: Words, at: int, level: str = "INFO") -> None:
        if self.verbosity < at:
            return
        if self.journal is None:
            self.margin.line(*words)
        else:
            self.journal.say(text, level=level)


def _is_fancy(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    return stream.isatty()
