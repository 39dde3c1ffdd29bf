"""Users' functions over batches of Arrow columns: their loading, output columns and calls."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

from distributary.errors import ConfigError
from distributary.model.names import printable
from distributary.model.record import TIMESTAMP
from distributary.model.rules.shape_rule import ShapeFunction
from distributary.shape.checks import Flags

Batches = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]
_LONGEST_MESSAGE = 200
_WIDER = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.uint8(), pa.uint16()), pa.int32()),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    **dict.fromkeys((pa.large_string(), pa.string_view()), pa.string()),
    **dict.fromkeys((pa.large_binary(), pa.binary_view()), pa.binary()),
}
"""Types of Arrow that no table holds, with the type that holds all of their values."""
_loaded: dict[tuple[str, bytes], Batches] = {}


def with_source(function: ShapeFunction, folder: Path | None) -> ShapeFunction:
    """Return a function with the text of its module, if that is a file in a folder.

    Raise ConfigError if there is no such function.
    """
    name, _, _ = function.reference.partition(":")
    file = None if folder is None else folder.joinpath(*name.split(".")).with_suffix(".py")
    try:
        if file is not None and file.is_file():
            function = replace(function, source=file.read_bytes())
        load(function)
    # the import runs code of the user, which may raise anything
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the function {printable(function.reference)} cannot be loaded",
            where="shape.function",
            evidence=_described(error),
            next_step=f"put {name}.py beside the pipeline file, or install its package here and "
            "where tasks run",
        ) from error
    return function


def load(function: ShapeFunction) -> Batches:
    """Return a function, from the text of its module or by its name; once for each process."""
    key = (function.reference, function.source)
    found = _loaded.get(key)
    if found is None:
        module_name, _, name = function.reference.partition(":")
        if function.source:
            digest = hashlib.sha256(function.source).hexdigest()[:16]
            module = ModuleType(f"distributary_function_{digest}")
            # classes of the module are found by its name
            sys.modules[module.__name__] = module
            code = compile(function.source, f"{module_name}.py", "exec")
            exec(code, module.__dict__)  # noqa: S102
        else:
            module = importlib.import_module(module_name)
        found = getattr(module, name)
        if not callable(found):
            raise TypeError(f"{name} is not a function")
        _loaded[key] = found
    return found


def output_of(function: ShapeFunction, before: pa.Schema) -> pa.Schema:
    """Return the columns that a function returns, by a call without rows.

    Raise ValueError with the reason if they are none.
    """
    try:
        found = load(function)(pa.RecordBatch.from_pylist([], schema=before))
        schema = found.schema
    except (Exception, SystemExit) as error:
        raise ValueError(f"fails for a batch without rows: {_described(error)}") from error
    if not len(schema):
        raise ValueError("returns no column")
    if doubled := next((n for n in schema.names if schema.names.count(n) > 1), ""):
        raise ValueError(f"returns two columns of the name {printable(doubled)}")
    hidden = [n for n in schema.names if n[:1] in ("", "_") and n not in before.names]
    if hidden:
        raise ValueError(f"returns a column {printable(hidden[0])}: a leading _ is reserved")
    return schema


def wider(type_: pa.DataType) -> pa.DataType:
    """Return the type in which values of an Arrow type are stored."""
    return TIMESTAMP if kinds.is_timestamp(type_) else _WIDER.get(type_, type_)


def call(
    function: ShapeFunction, rows: pa.RecordBatch, schema: pa.Schema
) -> tuple[pa.RecordBatch, Flags, dict[int, str]]:
    """Return the rows of a function, those for which it fails, and the reasons.

    After a failure the rows are halved until each row is found for which it fails alone; its values
    are null.
    """
    batches: list[pa.RecordBatch] = []
    reasons: dict[int, str] = {}
    waiting = [(0, rows.num_rows)]
    while waiting:
        start, stop = waiting.pop()
        try:
            batches.append(_called(function, rows.slice(start, stop - start), schema))
        except (Exception, SystemExit) as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
                continue
            reasons[start] = _described(error)
            nulls = [pa.nulls(1, field.type) for field in schema]
            batches.append(pa.RecordBatch.from_arrays(nulls, schema=schema))
    failed = np.zeros(rows.num_rows, np.bool_)
    failed[list(reasons)] = True
    whole = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    return whole[0] if whole else empty, failed, reasons


def _called(function: ShapeFunction, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    found = load(function)(rows)
    if found.num_rows != rows.num_rows:
        raise ValueError(f"it returned {found.num_rows} rows for {rows.num_rows}")
    if found.schema.names != schema.names:
        raise ValueError("it returned other columns than for a batch without rows")
    table = pa.Table.from_batches([found]) if isinstance(found, pa.RecordBatch) else found
    whole = table.cast(schema).combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema=schema)


def _described(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__
    return printable(text, longest=_LONGEST_MESSAGE)
