"""A record that kills the process that decodes it is found, and all others are decoded."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.formats import change_decoder_for, decoder_for
from distributary.decode.json.infer import infer
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.model.record import Format, WriterSchema
from distributary.registry.compile import compile_schema
from distributary.stage.guard import GuardedDecoder
from tests.decode.debezium_samples import raw_table
from tests.decode.json_samples import writer_schema

DEFECT = """
import os
from distributary.decode.change.debezium.decoder import DebeziumDecoder

decode = DebeziumDecoder.decode

def dying(self, payloads, raw):
    if any(b"deadly" in payload for payload in payloads.to_pylist()):
        DEATH
    return decode(self, payloads, raw)

DebeziumDecoder.decode = dying
"""
SOURCE = {"connector": "postgresql", "db": "d", "schema": "s", "table": "t"}
RUN = subprocess.run


def impatient(*command: Any, input: bytes, timeout: float, **settings: Any) -> Any:
    """Runs a process as ever, but does not wait for one that has this record."""
    _, payloads, _ = pickle.loads(input)
    deadly = any(b"deadly" in payload for payload in payloads)
    return RUN(*command, input=input, timeout=0.01 if deadly else timeout, **settings)


@pytest.mark.parametrize(
    "death", ["os.kill(os.getpid(), 9)", "raise MemoryError", "__import__('time').sleep(600)"]
)
def test_an_event_that_kills_its_process_is_alone_in_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str
) -> None:
    if "sleep" in death:
        monkeypatch.setattr(subprocess, "run", impatient)
    (tmp_path / "sitecustomize.py").write_text(DEFECT.replace("DEATH", death))
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    events = [
        json.dumps(
            {"after": {"id": n, "name": name}, "source": {**SOURCE, "lsn": n}, "op": "c"}
        ).encode()
        for n, name in enumerate(["first", "deadly", "last"])
    ]
    shape = infer(events)
    assert shape is not None
    schema, settings, limits = writer_schema(shape), ChangeSettings("debezium"), DecodeLimits()
    inner = change_decoder_for(schema, settings, limits)
    raw = raw_table({"key": f'{{"id":{n}}}'.encode(), "value": e} for n, e in enumerate(events))
    payloads = pa.array(events, pa.binary())
    guarded = GuardedDecoder(partial(change_decoder_for, schema, settings, limits))
    assert guarded.columns == inner.columns
    assert guarded.expansion is inner.expansion
    decoded = guarded.decode(payloads, raw)
    assert [(f.index, f.code) for f in decoded.failed] == [(1, ErrorCode.CRASHED_DECODER)]
    assert decoded.origin is not None and decoded.origin.to_pylist() == [0, 2]
    kept = [0, 2]
    assert decoded.ok.equals(inner.decode(payloads.take(kept), raw.take(kept)).ok)


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        (Format.PROTOBUF, 'syntax = "proto3"; message M {}'),
        (Format.AVRO, '{"type":"record","name":"M","fields":[]}'),
    ],
)
def test_records_of_a_type_without_fields_are_rows(
    monkeypatch: pytest.MonkeyPatch, format_: Format, text: str
) -> None:
    monkeypatch.setattr(subprocess, "run", impatient)
    compiled = compile_schema(text, format=format_, imports={})
    schema = WriterSchema(1, format_, compiled.body, compiled.message)
    guarded = GuardedDecoder(partial(decoder_for, schema, "M", DecodeLimits()))
    assert guarded.decode(pa.array([b"", b""], pa.binary())).ok.num_rows == 2
    halved = guarded.decode(pa.array([b"", b"deadly", b"", b""], pa.binary()))
    assert halved.ok.num_rows == 3
    assert halved.origin is not None and halved.origin.to_pylist() == [0, 2, 3]
    assert [(f.index, f.code) for f in halved.failed] == [(1, ErrorCode.CRASHED_DECODER)]
