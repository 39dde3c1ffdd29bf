from __future__ import annotations

import re
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.sources.kafka import (
    KafkaSecurity,
    KafkaSourceConfig,
    format_offsets,
    parse_offsets,
)
from distributary.errors import ConfigError, ErrorCode

offsets = st.one_of(
    st.sampled_from(["earliest", "latest"]),
    st.datetimes(timezones=st.integers(-12, 14).map(lambda h: timezone(timedelta(hours=h)))),
    st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.dictionaries(st.integers(0, 99), st.integers(-2, 2**40), min_size=1),
        min_size=1,
        max_size=3,
    ),
)


def kafka(**changes: Any) -> KafkaSourceConfig:
    base = {"type": "kafka", "bootstrap_servers": "h:1", "topics": ["a", "b"]}
    return KafkaSourceConfig.model_validate(base | changes)


def test_options_of_spark() -> None:
    options = kafka(
        fail_on_data_loss=False,
        options={"kafka.client.id": "me"},
    ).spark_options()
    assert options == {
        "kafka.bootstrap.servers": "h:1",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.client.id": "me",
    }


def test_offsets_of_partitions() -> None:
    assert parse_offsets({"t": {"1": "latest", "0": "earliest"}}) == {"t": {0: -2, 1: -1}}


@given(offsets)
def test_offsets_survive_a_round_trip(value: Any) -> None:
    parsed = parse_offsets(value)
    assert parse_offsets(format_offsets(parsed)) == parsed


@given(st.text(min_size=1), st.text(min_size=1))
def test_credentials_cannot_leave_their_quotes(username: str, password: str) -> None:
    security = KafkaSecurity.model_construct(mechanism="PLAIN", protocol="SASL_SSL")
    security = security.model_copy(
        update={
            "username": username,
            "password": KafkaSecurity(password=password).password,  # type: ignore[arg-type]
        }
    )
    jaas = security.jvm_options()["sasl.jaas.config"]
    quoted = r'"((?:[^"\\]|\\.)*)"'
    match = re.fullmatch(rf"\S+ required username={quoted} password={quoted};", jaas, re.DOTALL)
    assert match
    assert [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in match.groups()] == [
        username,
        password,
    ]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(mechanism: str) -> None:
    source = kafka(
        security={
            "protocol": "SASL_SSL",
            "mechanism": mechanism,
            "username": "u",
            "password": "p",
            "ca_location": "/ca.pem",
        }
    )
    options = source.spark_options()
    assert "ScramLoginModule" in options["kafka.sasl.jaas.config"]
    assert options["kafka.ssl.truststore.location"] == "/ca.pem"
    assert options["kafka.ssl.truststore.type"] == "PEM"
    assert source.client_options() == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": "/ca.pem",
    }


def test_other_mechanisms_bring_their_own_login(tmp_path: Path) -> None:
    source = kafka(
        security={"protocol": "SASL_SSL", "mechanism": "AWS_MSK_IAM"},
        options={"kafka.sasl.jaas.config": "module required;"},
    )
    assert source.spark_options()["kafka.sasl.jaas.config"] == "module required;"


def test_stores_and_pem_files(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("CERT")
    (tmp_path / "key.pem").write_text("KEY")
    pem = {"certificate_location": f"{tmp_path}/cert.pem", "key_location": f"{tmp_path}/key.pem"}
    options = kafka(security={"protocol": "SSL", "key_password": "k"} | pem).spark_options()
    assert options["kafka.ssl.keystore.certificate.chain"] == "CERT"
    assert options["kafka.ssl.keystore.key"] == "KEY"
    assert options["kafka.ssl.key.password"] == "k"
    stores = kafka(
        security={
            "protocol": "SSL",
            "truststore_location": "/t",
            "truststore_type": "PEM",
            "keystore_location": "/k",
            "keystore_type": "PKCS12",
            "keystore_password": "p",
        }
    )
    assert stores.spark_options()["kafka.ssl.keystore.password"] == "p"
    client = stores.client_options()
    assert client["ssl.ca.location"] == "/t"
    assert (client["ssl.keystore.location"], client["ssl.keystore.password"]) == ("/k", "p")
    both = kafka(
        security={"protocol": "SSL", "keystore_location": "/k", "keystore_type": "PEM"}
    ).client_options()
    assert (both["ssl.certificate.location"], both["ssl.key.location"]) == ("/k", "/k")


def test_a_certificate_that_cannot_be_read() -> None:
    source = kafka(security={"certificate_location": "/none", "key_location": "/none"})
    with pytest.raises(ConfigError) as caught:
        source.spark_options()
    assert caught.value.code is ErrorCode.CONFIG_UNREADABLE
