"""The packages of the fast decoders may be missing: everything is decoded, only more slowly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from distributary.cli.doctor import checks_of_machine
from distributary.decode.avro import fast_decoder as avro_engine
from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.decode.protobuf import fast_decoder as protobuf_engine
from distributary.decode.protobuf.decoder import ProtobufDecoder
from distributary.model.check import CheckState
from distributary.registry.compile.avro_compiler import compile_avro
from tests.decode.avro_samples import encode

PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
AVRO = [encode(PERSON, {"id": n, "name": f"n{n}"}) for n in range(100)] + [b"\x02"]
# the last one ends inside of its text
PROTOBUF = [b"\x08" + bytes([n]) + b"\x12\x01n" for n in range(1, 100)] + [b"\x12\x05n"]
# a name that maps to None cannot be imported
ALONE = """
import json, sys
from pathlib import Path
sys.modules["ptars"] = sys.modules["pyruhvro"] = None
import pyarrow as pa
from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.decode.protobuf.decoder import ProtobufDecoder

folder, report = Path(sys.argv[1]), {}
for name, kind in (("avro", AvroDecoder), ("protobuf", ProtobufDecoder)):
    decoder = kind((folder / name).read_bytes(), sys.argv[2 + len(report)], DecodeLimits())
    with pa.ipc.open_file(folder / f"{name}.arrow") as file:
        decoded = decoder.decode(file.get_batch(0).column(0))
    failed = [(f.index, f.code) for f in decoded.failed]
    report[name] = {"rows": decoded.ok.to_pylist(), "failed": failed}
print(json.dumps(report))
"""


def test_everything_is_decoded_without_the_packages(
    compiled: Callable[[str], bytes], tmp_path: Path
) -> None:
    avro = compile_avro(json.dumps(PERSON))
    body = compiled('syntax = "proto3"; package t; message M { int64 id = 1; string name = 2; }')
    samples = {"avro": (avro.body, avro.message, AVRO), "protobuf": (body, "t.M", PROTOBUF)}
    decoders = {"avro": AvroDecoder, "protobuf": ProtobufDecoder}
    expected = {}
    for name, (schema, message, payloads) in samples.items():
        batch = pa.record_batch({"payload": pa.array(payloads, pa.binary())})
        (tmp_path / name).write_bytes(schema)
        with pa.OSFile(str(tmp_path / f"{name}.arrow"), "wb") as sink:
            with pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
        quick = decoders[name](schema, message, DecodeLimits()).decode(batch.column(0))
        failed = [[f.index, f.code] for f in quick.failed]
        assert quick.ok.num_rows == len(payloads) - 1 and len(failed) == 1
        expected[name] = {"rows": quick.ok.to_pylist(), "failed": failed}
    command = [sys.executable, "-c", ALONE, str(tmp_path), avro.message, "t.M"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize("missing", [(), ("ptars",), ("ptars", "pyruhvro")], ids=len)
def test_doctor_says_what_is_missing(
    missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        module = protobuf_engine if name == "ptars" else avro_engine
        monkeypatch.setattr(module, name, None)
    (check,) = (each for each in checks_of_machine() if each.name == "decoders")
    assert check.state is (CheckState.WARN if missing else CheckState.PASS)
    assert all(name in check.fix for name in missing)
