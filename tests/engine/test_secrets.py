"""A password that the pipeline needs is in nothing that it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distributary.model.record import Format
from tests.engine.test_kafka_streams import person
from tests.lakes.streams import Stream
from tests.registry.frames import frame
from tests.services.secured import SecuredServices

TOKEN = "registry-password-73a1"


@pytest.mark.slow
def test_no_secret_is_written_anywhere(services: SecuredServices, tmp_path: Path) -> None:
    stream = Stream(services, tmp_path, payload="{format: protobuf}")
    number = stream.registry.register(stream.subject, person(1), format=Format.PROTOBUF)
    stream.topics.send(stream.topic, [frame(b"\x08\x01", schema_id=number), b"bad"])
    door = services.security
    (tmp_path / "events").mkdir()
    key = tmp_path / "key.pem"
    key.write_bytes(door.key.read_bytes())
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        f"""
name: {stream.topic}
source:
  type: kafka
  bootstrap_servers: {door.sasl_ssl}
  topics: [{stream.topic}]
  security:
    protocol: SASL_SSL
    mechanism: PLAIN
    username: {door.username}
    password: ${{env:KAFKA_SECRET}}
    ca_location: {door.authority}
    certificate_location: {door.certificate}
    key_location: {key}
registry:
  url: {services.registry}
  username: someone
  password: ${{file:{tmp_path}/mounted/token}}
payload: {{format: protobuf}}
tables: {{each: "{{topic}}"}}
lake: {{path: {stream.lake}}}
spark:
  conf:
    spark.eventLog.enabled: "true"
    spark.eventLog.dir: file://{tmp_path}/events
    spark.eventLog.compress: "false"
"""
    )
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "token").write_text(TOKEN)
    environ = os.environ | {
        "KAFKA_SECRET": door.password,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    outputs = []
    for arguments in (["run", "-vv"], ["status", "--json"], ["validate", "--show-config"]):
        command = [sys.executable, "-m", "distributary", *arguments, str(path)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout + done.stderr)
    left = [p for p in tmp_path.rglob("*") if p.is_file() and p != key and "mounted" not in p.parts]
    assert any("events" in p.parts for p in left)
    private = key.read_text().splitlines()[1]
    for secret in (door.password, TOKEN, private):
        assert not [text for text in outputs if secret in text]
        assert not [p for p in left if secret.encode() in p.read_bytes()]
