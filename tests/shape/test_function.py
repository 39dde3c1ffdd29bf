"""Functions of one's own: columns that come out, failures by record, and where they come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.file.document import PipelineFileError
from distributary.config.load import load_text
from distributary.config.rules.shape import ShapeConfig
from distributary.errors import ConfigError
from distributary.model.rules.shape_rule import ShapeFunction
from distributary.model.table import Column
from distributary.shape.function import call, load, output_of, with_source
from distributary.shape.resolve import Resolved, ShapeError, resolve
from distributary.testing import run

MODULE = '''
"""Cleaning of orders."""
import pyarrow as pa
import pyarrow.compute as pc

def clean(rows):
    if pc.any(pc.equal(rows["name"], "bad")).as_py():
        raise ValueError(f"cannot clean {rows['name'][0]}")
    length = pc.utf8_length(rows["name"]).cast(pa.int16())
    kept = [rows.column(n) for n in rows.schema.names if n != "name"]
    names = [n for n in rows.schema.names if n != "name"]
    return pa.RecordBatch.from_arrays([*kept, length], names=[*names, "length"])

def drops(rows):
    return rows.slice(1)

def ends(rows):
    raise SystemExit(3)

def under(rows):
    return rows.rename_columns(["_" + n for n in rows.schema.names])

def table(rows):
    return pa.Table.from_batches([rows, ])

no_function = 7
'''
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
COLUMNS = [Column(field.name, field.type) for field in SCHEMA]


def function(name: str) -> ShapeFunction:
    return ShapeFunction(f"cleaning:{name}", MODULE.encode())


def resolved(name: str, **more: Any) -> Resolved:

    rule = ShapeConfig(function=f"cleaning:{name}", **more).rule()
    return resolve([replace(rule, function=function(name))], COLUMNS, ())


names = st.none() | st.sampled_from(["a", "bad", "longer", ""])


@given(rows=st.lists(names, max_size=30))
@settings(deadline=None)
def test_each_row_that_fails_is_found_and_the_others_are_as_alone(rows: list[str | None]) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"id": n, "name": name} for n, name in enumerate(rows)], schema=SCHEMA
    )
    schema = pa.schema([("id", pa.int64()), ("length", pa.int32())])
    found, failed, reasons = call(function("clean"), batch, schema)
    assert failed.tolist() == [name == "bad" for name in rows]
    assert set(reasons.values()) <= {"ValueError: cannot clean bad"}
    assert found.to_pylist() == [
        {"id": None, "length": None}
        if name == "bad"
        else {"id": n, "length": None if name is None else len(name)}
        for n, name in enumerate(rows)
    ]


def test_the_columns_that_come_out_are_known_and_other_steps_stand_around_it() -> None:
    found = resolved("clean", where="id > 0", set={"name": "upper(name)"}, drop=["id"])
    assert [(c.name, c.type) for c in found.columns] == [("length", pa.int32())]
    assert len(found.shapes) == 3
    assert output_of(function("table"), SCHEMA) == SCHEMA


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ends", "fails for a batch without rows: SystemExit: 3"),
        ("under", "returns a column _id: a leading _ is reserved"),
    ],
)
def test_a_function_that_cannot_be_planned_says_why(name: str, why: str) -> None:
    with pytest.raises(ShapeError) as caught:
        resolved(name)
    assert str(caught.value) == f"function cleaning:{name}: {why}"


def test_rows_must_be_as_many() -> None:
    batch = pa.RecordBatch.from_pylist([{"id": 1, "name": "a"}], schema=SCHEMA)
    _, failed, reasons = call(function("drops"), batch, SCHEMA)
    assert failed.all()
    assert reasons == {0: "ValueError: it returned 0 rows for 1"}


FILE = """
name: orders
source: {type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [orders]}
payload: {format: json}
tables: {each: "silver_{topic}"}
lake: {path: ./lake}
shape: [{function: "cleaning:NAME"}]
"""
RECORDS = [{"id": 1, "name": "a"}, {"id": 2, "name": "bad"}, {"id": 3, "name": "abc"}]


@pytest.mark.parametrize("size", [1, 100])
def test_a_module_beside_the_file_shapes_its_tables(tmp_path: Path, size: int) -> None:
    (tmp_path / "cleaning.py").write_text(MODULE)
    file = tmp_path / "orders.yaml"
    file.write_text(FILE.replace("NAME", "clean"))
    result = run(file, RECORDS, batch_size=size)
    assert (result.counts.written, result.counts.dead_lettered) == (2, 1)
    found = result.tables["silver_orders"].select(["id", "length"]).to_pylist()
    assert sorted(row["length"] for row in found) == [1, 3]
    (letter,) = result.dead_letters
    assert letter["error_code"] == "SHAPE_FAILED"
    assert letter["error_message"] == (
        "function cleaning:clean fails: ValueError: cannot clean bad"
    )
    file.write_text(FILE.replace('"cleaning:NAME"', '"cleaning:clean", mask: {id: redact}'))
    (letter,) = run(file, RECORDS).dead_letters
    assert letter["error_message"] == "function cleaning:clean fails: ValueError"


@pytest.mark.parametrize("name", ["nothing", "no_function"])
def test_a_function_that_is_not_there_ends_the_run_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "cleaning.py").write_text(MODULE)
    file = tmp_path / "orders.yaml"
    file.write_text(FILE.replace("NAME", name))
    with pytest.raises(ConfigError, match=f"the function cleaning:{name} cannot be loaded"):
        run(file, RECORDS)


def test_modules_are_files_in_the_folder_or_imported(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def dumps(rows): return rows")
    beside = with_source(ShapeFunction("json:dumps"), tmp_path)
    assert beside.source
    assert load(beside) is not load(with_source(ShapeFunction("json:dumps"), None))
    with pytest.raises(ConfigError):
        with_source(ShapeFunction("no_such_module:f"), tmp_path)


@pytest.mark.parametrize("text", ["clean", "a:b:c", "../evil:run", "a.b/c:d", "os;x:f", ":f", "a:"])
def test_other_texts_are_no_functions(text: str) -> None:
    with pytest.raises(PipelineFileError):
        load_text(FILE.replace("cleaning:NAME", text))
