"""Files, answers and settings that are almost right are refused in our own words, or read."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pytest

from distributary.config.load import load_text
from distributary.errors import DistributaryError, ErrorCode
from tests.attack.mutations import mutated, replanted
from tests.config.conftest import CASES, CLOUD
from tests.registry.loopback import Says, registry, serving
from tests.source.change_files import avro, events, faults, lines, named, put
from tests.source.files.test_files_faults import read
from tests.source.files.test_files_parquet import parquet, simple

pytestmark = pytest.mark.slow
KINDS = {
    "avro": lambda: avro(events(30), block=300),
    "json": lambda: lines(events(30)),
    "array": lambda: json.dumps(events(30)).encode(),
    "gzip": lambda: gzip.compress(lines(events(30))),
    "parquet": lambda: parquet(pa.Table.from_pylist(simple(30))),
}
SHAPES = {
    "/schemas/ids/": {"schema": '{"type": "string"}', "schemaType": "AVRO", "references": []},
    "/versions": {
        "subject": "a",
        "id": 7,
        "version": 1,
        "schemaType": "PROTOBUF",
        "schema": 'syntax = "proto3"; import "x.proto"; message A { int64 id = 1; }',
        "references": [{"name": "x.proto", "subject": "x", "version": 1}],
    },
    "/subjects": ["a", "b"],
    "/config": {"compatibilityLevel": "BACKWARD"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_change_files(dice: random.Random, tmp_path: Path, kind: str) -> None:
    whole, root = KINDS[kind](), tmp_path / "in"
    paths = [named(n) for n in range(25)]
    for n, path in enumerate(paths):
        put(root, path, whole if n == 0 else mutated(whole, dice, most=4) or b"x")
    format = kind if kind in ("avro", "parquet") else "json"
    found = read(root, *paths, format=format, settle=0.01)
    found.validate(full=True)
    assert all(ErrorCode(code) for code, _ in faults(found))
    numbers = found["partition"].to_pylist()
    # each file gives rows or says why not, and a place in a file is there once
    assert set(numbers) == set(range(len(paths)))
    assert len(set(zip(numbers, found["offset"].to_pylist(), strict=True))) == len(numbers)
    assert numbers.count(0) >= 30


def test_pipeline_files(dice: random.Random) -> None:
    good = [path.read_bytes() for path in sorted(CASES.glob("*.yaml"))]
    read_well = 0
    for _ in range(150):
        text = mutated(dice.choice(good), dice).decode("utf-8", "replace")
        try:
            load_text(text, environ=CLOUD)
            read_well += 1
        except DistributaryError as error:
            assert error.code is not ErrorCode.INTERNAL
    assert read_well


def test_answers_of_a_registry(dice: random.Random) -> None:
    def answer(path: str) -> Says:
        shape = next((s for part, s in SHAPES.items() if part in path), {})
        try:
            body = json.dumps(replanted(shape, dice), default=str).encode()
        except ValueError:
            body = b"{"
        body = mutated(body, dice) if dice.random() < 0.5 else body
        return Says(dice.choice([200, 200, 200, 204, 301, 404, 409, 422, 500]), body)

    with (
        serving(lambda asked: answer(asked.path)) as server,
        registry(server.url, attempts=1) as reader,
    ):
        for number in range(40):
            for ask in (
                lambda n=number: reader.by_id(n),
                lambda: reader.latest("a"),
                lambda: reader.version("a", 1),
                lambda: reader.versions("a"),
                lambda: reader.subjects(),
                lambda: list(reader.schemas()),
                lambda: reader.compatibility("a"),
            ):
                try:
                    ask()
                except DistributaryError as error:
                    assert error.code is not ErrorCode.INTERNAL
