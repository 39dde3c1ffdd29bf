"""Expressions in SQL about the columns of a row, and their validation.

DuckDB parses an expression, because it will also evaluate it. DuckDB runs inside the process, reads
no file, loads no extension and has a locked configuration. It is imported with the first
expression: the import takes a tenth of a second.
"""

from __future__ import annotations

import atexit
import gc
import json
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError

from distributary.config.base import nearest

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


SHUT: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
}
"""Settings of a DuckDB engine that reads nothing but the data passed to it."""
# tasks already use all cores of a machine
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
"""Functions that return the same time for all rows of a batch."""
MOMENT_WORDS = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
)
"""Keywords of SQL that mean the current time where no column has that name."""
_MACROS = frozenset({"ago", "date_add", "days_in_month", "fdiv", "fmod", "if", "nullif"})
_MACRO_KINDS = ("list_", "array_", "map_contains", "split_part")
"""Prefixes of DuckDB's macros (functions written in SQL) that look at one row."""
_TOO_DEEP = "is nested too deeply"
_LONGEST = 10_000
_RECORD_TIME = (
    "the current time changes when a batch is staged again: use _timestamp, the time of the "
    "record, or in shape _batch_time, the time of the batch"
)

_lock = threading.Lock()
_engines: list[DuckDBPyConnection] = []


class ExpressionError(ValueError):
    """An invalid expression; the message quotes nothing of it but names of functions."""

    def __init__(self, why: str, *, suggestion: str = "") -> None:
        super().__init__(why)
        self.suggestion = suggestion


def open_engine(memory: str = "") -> DuckDBPyConnection:
    """Open an empty DuckDB database in memory that cannot read files or change its settings."""
    import duckdb

    limit = {"memory_limit": memory} if memory else {}
    engine = duckdb.connect(":memory:", config={**_SETTINGS, **limit})
    # all times in the lake are in UTC
    engine.execute("SET TimeZone = 'UTC'")
    engine.execute("SET lock_configuration = true")
    return engine


def enclosed(text: str) -> str:
    """Return the expression in brackets, on a line of its own in case it ends with a comment."""
    return f"(\n{text}\n)"


@lru_cache(maxsize=1024)
def columns_of(text: str, *, repeatable: bool = False) -> tuple[tuple[str, ...], ...]:
    """Return the columns and nested fields that an expression names; raise ExpressionError.

    A `repeatable` expression gives the same value each time: the current time is refused.
    """
    tree = _tree(text)
    try:
        columns = dict.fromkeys(_visit(tree, frozenset(), repeatable))
    except RecursionError:
        raise ExpressionError(_TOO_DEEP) from None
    if repeatable and (moment := next(filter(is_moment, columns), None)):
        raise ExpressionError(f"must not call {moment[0].lower()}: {_RECORD_TIME}")
    return tuple(columns)


def equal_values(text: str) -> tuple[tuple[str, ...], frozenset[tuple[str, ...]]] | None:
    """Return the columns and values of an expression that is nothing but values of columns.

    That is `a = 'x'`, `a IN ('x', 'y')`, or `a = 'x' AND b = 5`, with names in lower case and
    values as texts. Return None for any other expression.
    """
    tree = _tree(text)
    if tree.get("type") == "COMPARE_IN":
        column, *values = tree["children"]
        texts = [_constant(value) for value in values]
        name = _plain_column(column)
        if name is None or None in texts:
            return None
        return (name,), frozenset((text,) for text in texts if text is not None)
    parts = tree["children"] if tree.get("type") == "CONJUNCTION_AND" else [tree]
    pairs = [_equality(part) for part in parts]
    found = {pair[0]: pair[1] for pair in pairs if pair is not None}
    if len(found) < len(parts):
        return None
    return tuple(sorted(found)), frozenset([tuple(found[name] for name in sorted(found))])


def _equality(node: Mapping[str, Any]) -> tuple[str, str] | None:
    if node.get("type") != "COMPARE_EQUAL":
        return None
    for one, other in ((node["left"], node["right"]), (node["right"], node["left"])):
        name, text = _plain_column(one), _constant(other)
        if name is not None and text is not None:
            return name, text
    return None


def _plain_column(node: Mapping[str, Any]) -> str | None:
    """Return the name of a whole column, in lower case; None for anything else."""
    names = tuple(map(str, node.get("column_names") or ()))
    return names[0].lower() if len(names) == 1 and not is_moment(names) else None


def _constant(node: Mapping[str, Any]) -> str | None:
    """Return a text or a whole number as text; None for anything else."""
    literal = node.get("literal") if node.get("class") == "CONSTANT" else None
    if not isinstance(literal, dict) or literal.get("kind") not in ("STRING", "INTEGER"):
        return None
    return str(literal["text"])


def valid_expression(value: str, *, repeatable: bool, constant: bool) -> str:
    """Validate an expression of the pipeline file; a `constant` one may name no column."""
    text = value.strip()
    if not text:
        raise PydanticCustomError("blank", "must not be empty")
    if len(text) > _LONGEST or not all(c.isprintable() or c in "\n\t" for c in text):
        raise PydanticCustomError("unprintable", "must be printable text, not too long")
    try:
        columns = columns_of(text, repeatable=repeatable)
        if not constant and all(is_moment(names) for names in columns):
            raise ExpressionError("names no column")
    except ExpressionError as error:
        meant = {"suggestion": error.suggestion} if error.suggestion else {}
        raise PydanticCustomError("expression", "{why}", {"why": str(error), **meant}) from None
    return text


def called_function(text: str) -> str:
    """Return the function that an expression calls at its top, in lower case; empty for others.

    A call with DISTINCT, FILTER, ORDER BY or of a window does not count, and of several arguments
    neither. Raise ExpressionError.
    """
    tree = _tree(text)
    plain = tree.get("class") == "FUNCTION" and not tree.get("distinct") and not tree.get("filter")
    orders = (tree.get("order_bys") or {}).get("orders")
    # the key of the arguments differs between versions of DuckDB
    given = tree.get("arguments") or tree.get("children") or ()
    if not plain or orders or len(given) > 1:
        return ""
    return str(tree["function_name"]).lower()


def is_moment(names: tuple[str, ...]) -> bool:
    """Return true when a name that looks like a column may mean the current time."""
    return len(names) == 1 and names[0].lower() in MOMENT_WORDS


def _tree(text: str) -> Mapping[str, Any]:
    """Parse an expression with DuckDB and return its syntax tree."""
    statement = f"SELECT {enclosed(text)}"
    try:
        answer = json.loads(_query("SELECT json_serialize_sql(?)", statement)[0][0])
    except RecursionError:
        raise ExpressionError(_TOO_DEEP) from None
    if answer["error"]:
        raise ExpressionError(_syntax(answer, before=statement.index(text)))
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
    """Return where the syntax error is; DuckDB's own message would quote the expression."""
    if answer.get("error_subtype") != "SYNTAX_ERROR":
        return "is not an expression in SQL, or is nested too deeply"
    place = int(answer.get("position") or before) - before + 1
    return f"is not an expression in SQL: it goes wrong at character {max(1, place)}"


def _visit(node: Any, bound: frozenset[str], repeatable: bool) -> Iterator[tuple[str, ...]]:
    """Yield the columns below a node of the tree; `bound` holds the parameters of lambdas."""
    if isinstance(node, list):
        for item in node:
            yield from _visit(item, bound, repeatable)
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
        raise ExpressionError("must use the values of one row; grouping uses many rows")
    if kind == "FUNCTION":
        _refuse_function(node["function_name"], repeatable)
    if kind == "LAMBDA" and node.get("syntax_type") == "LAMBDA_KEYWORD":
        given = bound | {name for (name, *_) in _visit(node["lhs"], frozenset(), repeatable)}
        yield from _visit(node["expr"], given, repeatable)
        return
    for below in node.values():
        yield from _visit(below, bound, repeatable)


def _refuse_function(name: str, repeatable: bool) -> None:
    """Raise ExpressionError when an expression must not call this function."""
    functions, small = _functions(), name.lower()
    kind, stability = functions.get(small, ("", ""))
    if not kind:
        scalars = (known for known, (group, _) in functions.items() if group == "scalar")
        near = nearest(name, filter(str.isidentifier, scalars), at_least=0.75)
        raise ExpressionError(f"calls an unknown function: {name[:60]}", suggestion=near)
    if kind in ("aggregate", "window") or small == "count_star":
        raise ExpressionError(f"must use the values of one row; {name} uses many rows")
    if repeatable and small in (_MOMENTS | {"ago"}):
        raise ExpressionError(f"must not call {name}: {_RECORD_TIME}")
    if repeatable and small == "version":
        raise ExpressionError(f"must not call {name}")
    usable = kind == "scalar" and (stability == "CONSISTENT" or small in _MOMENTS)
    if kind == "macro":
        usable = small in _MACROS or small.startswith(_MACRO_KINDS)
    if not usable:
        raise ExpressionError(f"must not call {name}")


@lru_cache(maxsize=1)
def _functions() -> Mapping[str, tuple[str, str]]:
    """Return kind and stability of every function of DuckDB, by name in lower case."""
    rows = _query("SELECT lower(function_name), function_type, stability FROM duckdb_functions()")
    known: dict[str, tuple[str, str]] = {}
    for name, kind, stability in rows:
        before = known.get(name, ("", ""))
        # of several functions with one name, the most restricted one counts
        if _restriction(kind, stability) >= _restriction(*before):
            known[name] = (kind, stability or "")
    return known


def _restriction(kind: str, stability: str | None) -> int:
    """Rank a function: a higher number is more restricted."""
    if kind == "scalar":
        return 2 if stability == "CONSISTENT" else 4
    return {"": 0, "macro": 3, "aggregate": 5, "window": 5}.get(kind, 1)


def _query(query: str, *values: str) -> list[Any]:
    """Run a query on the shared engine and return its rows."""
    with _lock:
        if not _engines:
            _engines.append(open_engine())
        return _engines[0].execute(query, list(values)).fetchall()


@atexit.register
def _end() -> None:
    # DuckDB prints errors at exit if an engine is still open, or if its module is frozen and so
    # skipped by the garbage collector
    if _engines:
        _engines.pop().close()
        gc.unfreeze()
