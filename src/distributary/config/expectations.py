"""Rules that the rows of a table are expected to keep."""

from __future__ import annotations

import atexit
import gc
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from distributary.config.base import Conflict, Section, Text, Texts, matching, nearest
from distributary.config.lake import Tables
from distributary.model.expectation import Action, Rule

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


# One boolean expression in SQL: parsed by the engine that will evaluate it, refused if it is
# more. The engine is DuckDB inside the process, which reads no file, loads no extension and
# cannot be told otherwise; it is imported when a rule is met: that takes a tenth of a second.

SHUT: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
}
"""An engine that reads nothing but what it is given."""
# tasks share a machine's cores among themselves already
_SETTINGS = SHUT | {"threads": 1, "memory_limit": "256MB"}
_FORBIDDEN = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "a star",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column by its number",
    "DEFAULT": "a default",
}
_MOMENTS = frozenset(
    {
        *("now", "today", "current_date", "get_current_time", "get_current_timestamp"),
        *("transaction_timestamp", "current_localtime", "current_localtimestamp"),
    }
)
"""Functions that give one and the same moment for all rows of a batch."""
MOMENT_WORDS = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
)
"""The same as words of SQL, which mean it where no column is called so."""
_MACROS = frozenset({"ago", "date_add", "days_in_month", "fdiv", "fmod", "if", "nullif"})
_MACRO_KINDS = ("list_", "array_", "map_contains", "split_part")
"""Of the functions that are written in SQL themselves, those that look at one row."""
_TOO_DEEP = "is nested too deeply"

_lock = threading.Lock()
_known: list[DuckDBPyConnection] = []


class ExpressionError(ValueError):
    """What is wrong with an expression; says nothing of its text but names of functions."""

    def __init__(self, why: str, *, suggestion: str = "") -> None:
        super().__init__(why)
        self.suggestion = suggestion


def open_engine() -> DuckDBPyConnection:
    """A database of its own that is empty and stays shut."""
    import duckdb

    engine = duckdb.connect(":memory:", config=_SETTINGS)
    # moments are counted in UTC everywhere in the lake
    engine.execute("SET TimeZone = 'UTC'")
    engine.execute("SET lock_configuration = true")
    return engine


def enclosed(check: str) -> str:
    """The expression in brackets; a comment at its end cannot swallow the bracket."""
    return f"(\n{check}\n)"


@lru_cache(maxsize=1024)
def columns_of(check: str) -> tuple[tuple[str, ...], ...]:
    """The columns that an expression names, with fields inside them; raises ExpressionError."""
    tree = _tree(check)
    try:
        found = dict.fromkeys(_visit(tree, frozenset()))
    except RecursionError:
        raise ExpressionError(_TOO_DEEP) from None
    if all(is_moment(names) for names in found):
        raise ExpressionError("names no column")
    return tuple(found)


def is_moment(names: tuple[str, ...]) -> bool:
    """Whether what looks like a column may be the present moment."""
    return len(names) == 1 and names[0].lower() in MOMENT_WORDS


def _tree(check: str) -> Mapping[str, Any]:
    statement = f"SELECT {enclosed(check)}"
    try:
        answer = json.loads(_asked("SELECT json_serialize_sql(?)", statement)[0][0])
    except RecursionError:
        raise ExpressionError(_TOO_DEEP) from None
    if answer["error"]:
        raise ExpressionError(_syntax(answer, before=statement.index(check)))
    statements = answer["statements"]
    node = statements[0]["node"] if len(statements) == 1 else {}
    items = node.get("select_list", ())
    bare = node.get("type") == "SELECT_NODE" and node["from_table"]["type"] == "EMPTY"
    extra = ("where_clause", "group_expressions", "having", "qualify", "sample", "modifiers")
    if not bare or len(items) != 1 or any(node[part] for part in extra) or node["cte_map"]["map"]:
        raise ExpressionError("must be one expression, not a statement")
    tree: Mapping[str, Any] = items[0]
    return tree


def _syntax(answer: Mapping[str, Any], *, before: int) -> str:
    """Where it goes wrong; the engine's own words would repeat what is written there."""
    if answer.get("error_subtype") != "SYNTAX_ERROR":
        return "is not an expression in SQL, or is nested too deeply"
    place = int(answer.get("position") or before) - before + 1
    return f"is not an expression in SQL: it goes wrong at character {max(1, place)}"


def _visit(node: Any, bound: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """The columns below a part of the tree; `bound` are names that lambdas have given."""
    if isinstance(node, list):
        for item in node:
            yield from _visit(item, bound)
        return
    if not isinstance(node, dict):
        return
    kind = node.get("class")
    if kind in _FORBIDDEN:
        raise ExpressionError(f"must not hold {_FORBIDDEN[kind]}")
    if kind == "COLUMN_REF":
        names = tuple(node["column_names"])
        if names[0] not in bound:
            yield names
        return
    if node.get("type") == "GROUPING_FUNCTION":
        raise ExpressionError("must look at one row, and grouping looks at many")
    if kind == "FUNCTION":
        _refuse_function(node["function_name"])
    if kind == "LAMBDA" and node.get("syntax_type") == "LAMBDA_KEYWORD":
        given = bound | {name for (name, *_) in _visit(node["lhs"], frozenset())}
        yield from _visit(node["expr"], given)
        return
    for below in node.values():
        yield from _visit(below, bound)


def _refuse_function(name: str) -> None:
    functions, small = _functions(), name.lower()
    kind, stability = functions.get(small, ("", ""))
    if not kind:
        scalars = (known for known, (each, _) in functions.items() if each == "scalar")
        near = nearest(name, filter(str.isidentifier, scalars), at_least=0.75)
        raise ExpressionError(f"calls an unknown function: {name[:60]}", suggestion=near)
    if kind in ("aggregate", "window") or small == "count_star":
        raise ExpressionError(f"must look at one row, and {name} looks at many")
    usable = kind == "scalar" and (stability == "CONSISTENT" or small in _MOMENTS)
    if kind == "macro":
        usable = small in _MACROS or small.startswith(_MACRO_KINDS)
    if not usable:
        raise ExpressionError(f"must not call {name}")


@lru_cache(maxsize=1)
def _functions() -> Mapping[str, tuple[str, str]]:
    """Kind and stability of every function that the engine has, by name in small letters."""
    rows = _asked("SELECT lower(function_name), function_type, stability FROM duckdb_functions()")
    known: dict[str, tuple[str, str]] = {}
    for name, kind, stability in rows:
        before = known.get(name, ("", ""))
        # of a name that stands for several things the most restricted one counts
        if _restriction(kind, stability) >= _restriction(*before):
            known[name] = (kind, stability or "")
    return known


def _restriction(kind: str, stability: str | None) -> int:
    if kind == "scalar":
        return 2 if stability == "CONSISTENT" else 4
    return {"": 0, "macro": 3, "aggregate": 5, "window": 5}.get(kind, 1)


def _asked(query: str, *values: str) -> list[Any]:
    with _lock:
        if not _known:
            _known.append(open_engine())
        return _known[0].execute(query, list(values)).fetchall()


@atexit.register
def _end() -> None:
    # an engine that is still held when the interpreter ends fills the terminal with complaints,
    # and so does the module itself while the garbage collector may not see it
    if _known:
        _known.pop().close()
        gc.unfreeze()


_LONGEST_CHECK = 10_000


def _check(value: str) -> str:
    text = value.strip()
    if not text:
        raise PydanticCustomError("blank", "must not be empty")
    if len(text) > _LONGEST_CHECK or not all(c.isprintable() or c in "\n\t" for c in text):
        raise PydanticCustomError("unprintable", "must be printable text, not too long")
    try:
        columns_of(text)
    except ExpressionError as error:
        meant = {"suggestion": error.suggestion} if error.suggestion else {}
        raise PydanticCustomError("expression", "{why}", {"why": str(error), **meant}) from None
    return text


RuleName = Annotated[
    Text,
    matching(
        r"[A-Za-z][A-Za-z0-9_.-]{0,99}",
        "rule_name",
        "must start with a letter, then letters, digits, dots, dashes and _ (100 at most)",
    ),
]


class Expectation(Section):
    """A rule about rows, in SQL, and what becomes of rows that break it."""

    name: RuleName = Field(examples=["sane_score"])
    """Name of the rule, in counts and messages."""
    check: Annotated[str, AfterValidator(_check)] = Field(
        examples=["score >= 0 and score < 1e6"],
    )
    """What every row is expected to be: one boolean expression over the columns of the table.
    Unknown (null) passes, as with a CHECK constraint."""
    action: Literal["warn", "dead_letter", "fail"] = "warn"
    """warn: the row is written and counted; dead_letter: its record goes to the dead letters,
    whole; fail: the batch is refused."""
    tables: Texts = Field(default=(), examples=[["silver_*"]])
    """Tables it holds for, with * and ?; all tables of types when left out."""
    types: Texts = Field(default=(), examples=[["chess"]])
    """Types it holds for, with * and ?; all types when left out."""

    def rule(self) -> Rule:
        """The same for tasks."""
        return Rule(
            name=self.name,
            check=self.check,
            action=Action(self.action),
            tables=self.tables,
            types=self.types,
            columns=columns_of(self.check),
        )


def expectation_conflicts(
    expectations: Sequence[Expectation], tables: Tables, *, changes: bool
) -> Iterator[Conflict]:
    """What rules cannot ask for in this pipeline, each with its place in the list."""
    if expectations and not tables.each:
        yield ("expectations",), "needs tables.each: rules are about the tables of types"
    others = {name for setting, name in tables.fixed_names().items() if setting != "each"}
    names: set[str] = set()
    for number, one in enumerate(expectations):
        place = ("expectations", number)
        if one.name in names:
            yield (*place, "name"), "is the name of another rule too"
        names.add(one.name)
        if changes and one.action == "dead_letter":
            why = "cannot be dead_letter for change data, whose rows would keep an older state"
            yield (*place, "action"), f"{why}: use warn or fail"
        for table in others.intersection(one.tables):
            yield (*place, "tables"), f"names {table}, but rules are about the tables of types"
