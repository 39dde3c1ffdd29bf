"""The pages of the documentation, and what stands in them that can be tried.

An HTML comment in the line above a block says what the test needs to know of it:

    <!-- run after: demo games -->    its commands are run in the lake of that demo

A pipeline file that begins with the comment `# completes the file above` is that file with its own
sections put in; one that is no whole file and says nothing is put into that of the quick start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\s*$")
_MARK = re.compile(r"<!-- run after: (?P<after>[\w ]+) -->")
_INLINE = re.compile(r"(?<!`)`(distributary [^`]+)`(?!`)")
_NOT_OURS = re.compile(r"\s{3,}\S|\s#|\s(?:\d?>|\||&&|;)\s?")
"""Where a command ends on a line: before an explanation, a redirection, another command."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    run_after: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def lines(self) -> list[str]:
        """Its lines, those that go on joined with what follows."""
        return re.sub(r"\\\n\s*", "", self.text).splitlines()

    def commands(self, program: str = "distributary") -> list[str]:
        """What is typed, without the prompt and without what is said about it."""
        typed = (line.removeprefix("$ ").strip() for line in self.lines())
        return [
            _NOT_OURS.split(line, maxsplit=1)[0].strip()
            for line in typed
            if line.startswith(f"{program} ")
        ]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.read_text("utf-8").splitlines()
    begun: tuple[int, str, str, str] | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if begun is None and fence:
            mark = _MARK.search(lines[number - 1]) if number else None
            begun = (number, fence["language"], fence["indent"], mark["after"] if mark else "")
        elif begun is not None and line.strip() == "```":
            start, language, indent, after = begun
            text = "\n".join(each.removeprefix(indent) for each in lines[start + 1 : number])
            yield Block(page, start + 1, language, text + "\n", after)
            begun = None
    assert begun is None, f"{page}: a block that does not end"


def every_block() -> list[Block]:
    """The fenced blocks of all pages."""
    return [block for page in PAGES for block in blocks(page)]


def typed_in_prose(page: Path) -> list[str]:
    """Commands that stand in sentences and tables of a page."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [command.replace("\\|", "|") for command in _INLINE.findall(text)]


def runnable(after: str) -> list[str]:
    """The commands that the pages promise to work after a demo, in the order of the pages."""
    return [
        command.removeprefix("distributary ")
        for block in every_block()
        if block.run_after == after
        for command in block.commands()
    ]
