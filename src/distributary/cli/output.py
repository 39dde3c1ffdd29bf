"""The one seam through which commands speak: text for people, or one JSON document.

Data goes to standard output, everything else to standard error. All text is taken as it is: nothing
in it is markup, and control characters are shown as escapes.
"""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from distributary.cli.words import printable
from distributary.observe.plain import plain

if TYPE_CHECKING:
    from distributary.observe.journal import Journal

QUIET, NORMAL, STEPS, EVERYTHING = -1, 0, 1, 2
"""`-q`, nothing, `-v` and `-vv`."""

DOCUMENT_VERSION = 1
_UNLIMITED = 100_000

Words = str | Text


def styled(text: str, style: str) -> Text:
    """Text from anywhere in a colour."""
    return Text(printable(text), style=style)


class Paper:
    """A stream to draw on: plain where colour is not wanted or nobody looks."""

    def __init__(self, stream: TextIO) -> None:
        self.fancy = _is_fancy(stream)
        """Whether it is a terminal that can move its cursor and show colours."""
        self.console = Console(
            file=stream,
            force_terminal=self.fancy,
            color_system="auto" if self.fancy else None,
            no_color=not self.fancy,
            # a pipe has no width: nothing is wrapped or cut there
            width=None if self.fancy else _UNLIMITED,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def line(self, *words: Words) -> None:
        """One line; its parts are joined as they are."""
        text = Text()
        for part in words:
            text.append_text(part if isinstance(part, Text) else Text(printable(part)))
        self._print(text)

    def lines(self, text: str, *, indent: str = "") -> None:
        """A text of several lines."""
        for each in text.splitlines():
            self.line(f"{indent}{each}")

    def table(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[Words]],
        *,
        right: Iterable[str] = (),
        indent: int = 2,
    ) -> None:
        """Columns under headers, without a frame."""
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        aligned = set(right)
        cells = [[c if isinstance(c, Text) else Text(printable(c)) for c in row] for row in rows]
        for at, header in enumerate(headers):
            number = header in aligned
            longest = max((row[at].cell_len for row in cells), default=0)
            # what a line is about, and numbers, stay in one piece if they fit at all
            whole = number or (at == 0 and longest <= self.console.width // 2)
            table.add_column(
                header,
                justify="right" if number else "left",
                overflow="ellipsis" if at else "fold",
                no_wrap=whole,
            )
        for row in cells:
            table.add_row(*row)
        self._print(table, indent=indent)

    def _print(self, what: RenderableType, *, indent: int = 0) -> None:
        with self.console.capture() as drawn:
            self.console.print(what, width=self.console.width - indent)
        # what is left of a table's last column
        for each in drawn.get().splitlines():
            self.console.file.write(f"{' ' * indent}{each}".rstrip() + "\n")
        self.console.file.flush()


Draw = Callable[[Paper], None]


class Output(ABC):
    """What a command is given to speak with."""

    def __init__(
        self,
        *,
        verbosity: int = NORMAL,
        debug: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.verbosity = verbosity
        self.debug = debug
        self.stdout = stdout or sys.stdout
        self.paper = Paper(self.stdout)
        self.margin = Paper(stderr or sys.stderr)
        self.mask: Callable[[str], str] = str
        """Hides the secrets of the pipeline at hand in what is not data."""
        self.journal: Journal | None = None
        """The log that is kept on standard error instead of words for people."""

    @abstractmethod
    def show(self, data: Mapping[str, Any], draw: Draw) -> None:
        """The answer: `data` as JSON, or what `draw` makes of it."""

    @abstractmethod
    def show_error(self, error: Mapping[str, Any], draw: Draw) -> None:
        """What went wrong, in the same two ways."""

    @property
    @abstractmethod
    def is_json(self) -> bool:
        """Whether standard output is kept for one document."""

    @property
    def lively(self) -> bool:
        """Whether a view that redraws itself is wanted."""
        alone = not self.is_json and self.journal is None
        return self.paper.fancy and alone and self.verbosity == NORMAL

    def note(self, text: str) -> None:
        """What is being done, for whoever waits."""
        self._aside(text, self.mask(text), at=NORMAL)

    def step(self, text: str) -> None:
        """A detail of what is being done, with `-v`."""
        self._aside(text, styled(self.mask(text), "dim"), at=STEPS)

    def warn(self, text: str) -> None:
        """Something to know, that does not stop the command."""
        words = (styled("warning: ", "yellow"), self.mask(text))
        self._aside(text, *words, at=NORMAL, level="WARNING")

    def _aside(self, text: str, *words: Words, at: int, level: str = "INFO") -> None:
        if self.verbosity < at:
            return
        if self.journal is None:
            self.margin.line(*words)
        else:
            self.journal.say(text, level=level)


class TextOutput(Output):
    """For people, and for pipes that want lines."""

    is_json = False

    def show(self, data: Mapping[str, Any], draw: Draw) -> None:
        """Draws on standard output, unless nothing but errors is wanted."""
        if self.verbosity >= NORMAL:
            draw(self.paper)

    def show_error(self, error: Mapping[str, Any], draw: Draw) -> None:
        """Draws on standard error, or writes it to the log there."""
        if self.journal is None:
            draw(self.margin)
        else:
            self.journal.say(str(error["what"]), event="error", level="ERROR", **error)


class JsonOutput(Output):
    """For programs: one document with a version."""

    is_json = True

    def show(self, data: Mapping[str, Any], draw: Draw) -> None:
        """Writes the document."""
        # its version goes first, whatever the data says
        document = {"version": DOCUMENT_VERSION} | plain(data) | {"version": DOCUMENT_VERSION}
        self.stdout.write(json.dumps(document, indent=2) + "\n")
        self.stdout.flush()

    def show_error(self, error: Mapping[str, Any], draw: Draw) -> None:
        """The error is the document."""
        self.show({"error": error}, draw)


def make_output(*, as_json: bool, verbosity: int = NORMAL, debug: bool = False) -> Output:
    """The output that the flags of a command ask for."""
    return (JsonOutput if as_json else TextOutput)(verbosity=verbosity, debug=debug)


def _is_fancy(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    return stream.isatty()
