"""The reference of the Python API, read from the classes, their signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import distributary
from distributary import testing
from distributary.engine.loop import RunSummary
from distributary.observe.events import BatchSettled
from distributary.operations.cut_changes import TableChanges
from distributary.operations.public_lake import LakeTable, LetterRows

_INTRODUCTION = """\
# Python API

The classes and functions of `distributary` and `distributary.testing`. The pages
[Python](../python.md) and [Test a pipeline file](../howto/test.md) have examples, which the tests
of the project run. Every error is a `distributary.DistributaryError` ([codes](../errors.md)).
"""

_LEFT_OUT = {
    distributary.Pipeline: {
        *(
            "bus",
            "calls",
            "checkpoint",
            "loaded",
            "failure_recorded",
            "chosen_trigger",
            "open",
            "parking",
            "planner",
        ),
        *("ready", "registry", "session", "spark_settings"),
    },
    TableChanges: {"cuts", "since", "until"},
}
"""The members that the program itself uses."""


def classes() -> dict[str, list[type[Any]]]:
    """The classes of the page, by the module from which users have them."""
    return {
        "distributary": [
            distributary.Lake,
            LakeTable,
            LetterRows,
            TableChanges,
            distributary.Pipeline,
            RunSummary,
            BatchSettled,
        ],
        "distributary.testing": [testing.Record, testing.Schemas, testing.Result],
    }


def page() -> str:
    """The page as Markdown."""
    parts = [_INTRODUCTION]
    for module, found in classes().items():
        parts.append(f"## {module}\n")
        if module == testing.__name__:
            parts.append(_function(testing.run))
        parts += map(_class, found)
    return "\n".join(parts)


def _class(cls: type[Any]) -> str:
    rows = [f"| {_cell(name, text)} |" for name, text in _members(cls)]
    table = "\n".join(["| member | |", "|---|---|", *rows, ""]) if rows else ""
    return f"### {cls.__name__}\n\n{_text(cls)}\n\n{table}"


def _function(function: Callable[..., Any]) -> str:
    call = _signature(function, skip_self=False)
    return f"### {function.__name__}\n\n```text\n{call}\n```\n\n{_text(function)}\n"


def _cell(name: str, text: str) -> str:
    return f"`{name}` | {text}".replace("|", "\\|").replace(" \\| ", " | ", 1)


def _members(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the members of a class for users."""
    left_out = _LEFT_OUT.get(cls, ())
    return ((name, text) for name, text in _all_members(cls) if name.split("(")[0] not in left_out)


def _all_members(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields, properties and methods, with what their docstrings say."""
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == "distributary":
            yield from _fields(base)
    for name in dict.fromkeys(n for base in cls.__mro__ for n in vars(base)):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(cls, name)
        if isinstance(member, property | cached_property):
            yield name, _text(member)
        elif isinstance(member, classmethod | staticmethod):
            yield _signature(member.__func__), _text(member.__func__)
        elif inspect.isfunction(member):
            yield _signature(member), _text(member)


def _fields(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class, with the text below each."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for field, after in zip(statements, [*statements[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            said = text.value if isinstance(text, ast.Constant) else ""
            if not field.target.id.startswith("_"):
                yield field.target.id, " ".join(str(said).split())


def _signature(function: Callable[..., Any], *, skip_self: bool = True) -> str:
    """Return name and parameters as a call, without modules and annotations of the result."""
    given = inspect.signature(function)
    parameters = list(given.parameters.values())[1 if skip_self else 0 :]
    short = [str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters]
    keyword = next((n for n, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    packed = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if keyword is not None and not packed:
        short.insert(keyword, "*")
    return f"{function.__name__}({', '.join(short)})"


def _text(thing: Any) -> str:
    """Return a docstring as one line of Markdown."""
    return " ".join(inspect.cleandoc(thing.__doc__ or "").split())
