"""An event that kills the process that decodes it is found, and all others are decoded."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from distributary.decode.base import DecodeLimits
from distributary.decode.formats import change_decoder_for
from distributary.decode.json.infer import infer, writer_schema
from distributary.errors import ErrorCode
from distributary.model.change import ChangeSettings
from distributary.stage.guard import GuardedDecoder
from tests.decode.debezium_samples import raw_table

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


@pytest.mark.parametrize("death", ["os.kill(os.getpid(), 9)", "raise MemoryError"])
def test_an_event_that_kills_its_process_is_alone_in_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str
) -> None:
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
