"""Checks of the language in the code: `python -m tools.words [FOLDER]`, a part of `make lint`.

The limits are a floor, not an aim: a check cannot tell whether a stranger understands a sentence.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "distributary"
MOST_QUESTIONS = 0.03
"""The share of functions' docstrings that may open with a question word."""
MOST_VAGUE = 5.0
"""The vague words that may be in 10,000 words of docstrings."""
MOST_SHARED_NAMES = 19
"""The names that may belong to public classes of several modules."""
BANNED_NAMES = frozenset({"told"})
"""Names that say nothing about a variable's content."""
_SHOWN = 10
_QUESTION = re.compile(
    r"(what|who|whose|whether|which|where|when|how|why|under which|those|one that|it,)\b", re.I
)
_VAGUE = re.compile(r"\b(told|tells|whoever|nobody|somebody|who|whom)\b", re.I)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Words:
    """The counts of a folder, with the place of each finding."""

    functions: int = 0
    """The number of functions with a docstring."""
    words: int = 0
    """The number of words in all docstrings."""
    questions: list[str] = field(default_factory=list)
    vague: list[str] = field(default_factory=list)
    banned: list[str] = field(default_factory=list)
    classes: dict[str, set[str]] = field(default_factory=dict)
    """The modules of each public class name."""

    @property
    def shared_names(self) -> list[str]:
        """Return the class names that belong to several modules, with these modules."""
        shared = ((name, places) for name, places in self.classes.items() if len(places) > 1)
        return [f"{name}: {', '.join(sorted(places))}" for name, places in sorted(shared)]

    def problems(self) -> list[str]:
        """Return a text for each limit that is exceeded, with the first findings."""
        found = []
        if len(self.questions) > MOST_QUESTIONS * self.functions:
            found.append(_problem("docstrings of functions open with a question", self.questions))
        if len(self.vague) * 10_000 > MOST_VAGUE * self.words:
            found.append(_problem("vague words in docstrings", self.vague))
        if len(self.shared_names) > MOST_SHARED_NAMES:
            found.append(_problem("class names exist more than once", self.shared_names))
        if self.banned:
            found.append(_problem("variables have a banned name", self.banned))
        return found

    def summary(self) -> str:
        """Return the counts in one line."""
        share = 100 * len(self.questions) / max(self.functions, 1)
        rate = 10_000 * len(self.vague) / max(self.words, 1)
        return (
            f"{share:.1f} % of {self.functions:,} docstrings of functions open with a question, "
            f"{rate:.1f} vague words in 10,000, {len(self.shared_names)} of {len(self.classes)} "
            f"class names exist more than once, {len(self.banned)} banned variable names"
        )


def count(root: Path) -> Words:
    """Count the words of all modules below a folder."""
    words = Words()
    for path in sorted(root.rglob("*.py")):
        _count_module(words, ast.parse(path.read_text("utf-8")), str(path.relative_to(root)))
    return words


def _count_module(words: Words, tree: ast.Module, module: str) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | _Function):
            _count_docstring(words, node, module)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            words.classes.setdefault(node.name, set()).add(module)
        for name, line in _bound(node):
            if name in BANNED_NAMES:
                words.banned.append(f"{module}:{line} {name}")


def _count_docstring(
    words: Words, node: ast.Module | ast.ClassDef | _Function, module: str
) -> None:
    text = ast.get_docstring(node)
    if text is None:
        return
    place = f"{module}:{getattr(node, 'lineno', 1)} {text.splitlines()[0]}"
    words.words += len(text.split())
    words.vague += [place] * Counter(_VAGUE.findall(text)).total()
    if isinstance(node, _Function):
        words.functions += 1
        if _QUESTION.match(text):
            words.questions.append(place)


def _bound(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name that a node binds to a value, with its line."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, node.lineno
    elif isinstance(node, ast.arg):
        yield node.arg, node.lineno


def _problem(what: str, places: Sequence[str]) -> str:
    more = f"\n  and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return f"{len(places)} {what}:" + "".join(f"\n  {p}" for p in places[:_SHOWN]) + more


def main(arguments: Sequence[str]) -> int:
    """Print the counts, and the findings beyond a limit; return 1 if there are any."""
    words = count(Path(arguments[0]) if arguments else ROOT)
    problems = words.problems()
    for problem in problems:
        print(problem)
    print(words.summary())
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
