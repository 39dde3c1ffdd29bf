"""Settings of the Java client, said to librdkafka: what can be said, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from distributary.config.sources import librdkafka
from distributary.config.sources.kafka import KafkaSourceConfig
from distributary.config.sources.librdkafka import translate
from distributary.source.kafka.consumer import Client

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_SECRET = "s3cr3t"


def kafka(**settings: Any) -> KafkaSourceConfig:
    base = {"type": "kafka", "bootstrap_servers": "127.0.0.1:9092", "topics": ["t"]}
    return KafkaSourceConfig.model_validate(base | settings)


@pytest.mark.parametrize(
    ("java", "expected"),
    [
        ({"client.id": "me"}, {"client.id": "me"}),
        ({"request.timeout.ms": "30000"}, {"socket.timeout.ms": "30000"}),
        # the Java client has no bound
        ({"request.timeout.ms": "9000000"}, {"socket.timeout.ms": "300000"}),
        ({"receive.buffer.bytes": "-1"}, {"socket.receive.buffer.bytes": "0"}),
        ({"fetch.max.wait.ms": "100"}, {"fetch.wait.max.ms": "100"}),
        ({"max.partition.fetch.bytes": "2000000"}, {"fetch.message.max.bytes": "2000000"}),
        ({"isolation.level": "read_committed"}, {"isolation.level": "read_committed"}),
        ({"session.timeout.ms": "45000", "max.poll.records": "5"}, {}),
        (
            {"ssl.endpoint.identification.algorithm": ""},
            {"ssl.endpoint.identification.algorithm": "none"},
        ),
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"},
            {"ssl.ca.location": "/ca.pem"},
        ),
        ({"ssl.truststore.certificates": "PEM..."}, {"ssl.ca.pem": "PEM..."}),
        (
            {"ssl.keystore.type": "pem", "ssl.keystore.location": "/both.pem"},
            {"ssl.certificate.location": "/both.pem", "ssl.key.location": "/both.pem"},
        ),
        (
            {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": "/k.p12",
                "ssl.keystore.password": _SECRET,
            },
            {"ssl.keystore.location": "/k.p12", "ssl.keystore.password": _SECRET},
        ),
        (
            {"reconnect.backoff.ms": "20000"},
            {"reconnect.backoff.ms": "20000", "reconnect.backoff.max.ms": "20000"},
        ),
    ],
)
def test_what_can_be_said(java: dict[str, str], expected: dict[str, str]) -> None:
    found = translate(java)
    assert found.connection | found.reading == expected
    assert not found.unknown


@pytest.mark.parametrize(
    ("line", "login"),
    [
        (f'{_PLAIN} required username="u" password="{_SECRET}";', ("u", _SECRET)),
        (f"{_SCRAM} required username='u' password='a\\'b';", ("u", "a'b")),
        (f'{_PLAIN} required\n  username=u\n  password="a;b=\\"c\\\\";', ("u", 'a;b="c\\')),
    ],
)
def test_a_login_with_a_password(line: str, login: tuple[str, str]) -> None:
    found = translate({"sasl.jaas.config": line})
    assert (found.connection["sasl.username"], found.connection["sasl.password"]) == login
    assert not found.unknown


@pytest.mark.parametrize(
    "java",
    [
        {"sasl.jaas.config": f'com.example.Login required username="u" password="{_SECRET}";'},
        {"sasl.jaas.config": f'{_SCRAM} required username="u" password="p" tokenauth="true";'},
        {"sasl.jaas.config": f'{_PLAIN} optional username="u" password="{_SECRET}";'},
        {"sasl.jaas.config": f'{_PLAIN} required username="u" password="{_SECRET}'},
        {"sasl.mechanism": "OAUTHBEARER"},
        {"ssl.truststore.location": "/t.jks"},
        {"ssl.truststore.location": "/t.p12", "ssl.truststore.type": "PKCS12"},
        {"ssl.keystore.location": "/k.jks", "ssl.keystore.type": "JKS"},
        {"sasl.login.callback.handler.class": "com.example.Login"},
        {"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"},
        {"fetch.min.bytes": "many"},
        {"no.such.setting": "x"},
    ],
)
def test_what_only_java_understands_is_named_without_its_value(java: dict[str, str]) -> None:
    found = translate(java)
    assert len(found.unknown) == 1
    assert found.unknown.keys() <= java.keys()
    assert _SECRET not in repr(found)
    options = {f"kafka.{name}": value for name, value in java.items()}
    assert not kafka(options=options).is_native
    assert not kafka(options=options, reader="spark").is_native
    with pytest.raises(ValidationError) as caught:
        kafka(options=options, reader="native")
    [name] = found.unknown
    assert f"kafka.{name}" in str(caught.value.errors(include_input=False))


@pytest.mark.parametrize(
    ("security", "place"),
    [
        ({"protocol": "SASL_SSL", "mechanism": "AWS_MSK_IAM"}, "mechanism"),
        ({"protocol": "SSL", "truststore_location": "/t.jks"}, "truststore_location"),
        ({"protocol": "SSL", "keystore_location": "/k.jks"}, "keystore_location"),
    ],
)
def test_security_that_only_java_has(security: dict[str, str], place: str) -> None:
    source = kafka(security=security)
    assert not source.is_native
    assert [where for where, _ in source.only_for_java()] == [("security", place)]
    with pytest.raises(ValidationError):
        kafka(security=security, reader="native")


def test_what_a_file_usually_says_is_read_natively() -> None:
    assert kafka().is_native
    assert not kafka(reader="spark").is_native
    login = {"mechanism": "SCRAM-SHA-512", "username": "u", "password": _SECRET}
    assert kafka(security={"protocol": "SASL_SSL", **login}).is_native


@pytest.mark.parametrize("value", [-(10**17), 0, 1, 1_000, 10**17])
def test_librdkafka_takes_every_number_that_java_takes(value: int) -> None:
    names = {*librdkafka._NUMBERS, *librdkafka._READING_NUMBERS}
    said = translate(dict.fromkeys(names, str(value)))
    options = {"bootstrap.servers": "127.0.0.1:1", **said.connection, **said.reading}
    Client(options, group="g").close()
