from __future__ import annotations

from collections.abc import Callable

import pytest

from distributary.config.file.document import Problem
from distributary.config.load import Loaded
from distributary.errors import ErrorCode

Load = Callable[..., Loaded]
Problems = Callable[..., list[Problem]]

SASL = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "u", "password": "p"}
FILES = {"type": "files", "path": "./in"}
DELTA = {"type": "delta", "path": "./in"}
REGISTRY = {"url": "http://r:8081"}
PROTOBUF = {"format": "protobuf"}
ENVELOPE = {"subject": "s", "type": "t"}
CDC = {"format": "datastream"}


def blamed(problems_of: Problems, text: str, changes: dict[str, object]) -> list[str]:
    problems = problems_of(text, overrides=changes)
    assert {p.code for p in problems} <= {ErrorCode.CONFIG_INVALID, ErrorCode.CONFIG_MISSING_KEY}
    return [p.path for p in problems]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"source.topic_pattern": "x"}, "source.topic_pattern"),
        ({"source.topics": []}, "source"),
        ({"source.topics": ["a", "a"]}, "source.topics"),
        ({"source.topics": ["a", "b,c"]}, "source.topics[1]"),
        ({"source.topics": [], "source.topic_pattern": "("}, "source.topic_pattern"),
        ({"source.options.session": "1"}, "source.options.session"),
        (
            {"source.options.kafka.bootstrap.servers": "1"},
            "source.options.kafka.bootstrap.servers",
        ),
        ({"source.starting_offsets": {}}, "source.starting_offsets"),
        ({"source.starting_offsets": {"t": {"x": 1}}}, "source.starting_offsets"),
        ({"source.starting_offsets": {"t": {0: -3}}}, "source.starting_offsets"),
        ({"source.starting_offsets": "1700000000"}, "source.starting_offsets"),
        ({"source.bootstrap_servers": "host"}, "source.bootstrap_servers"),
        ({"source.bootstrap_servers": ","}, "source.bootstrap_servers"),
        ({"source.security": {"protocol": "SASL_SSL"}}, "source.security.protocol"),
        ({"source.security": SASL | {"protocol": "SSL"}}, "source.security.mechanism"),
        ({"source.security": SASL | {"password": None}}, "source.security.mechanism"),
        (
            {"source.security": {"certificate_location": "c"}},
            "source.security.certificate_location",
        ),
        (
            {"source.security": {"ca_location": "c", "truststore_location": "t"}},
            "source.security.truststore_location",
        ),
        ({"source": FILES}, "payload"),
        ({"source": DELTA | {"starting_timestamp": "5"}}, "source.starting_timestamp"),
        (
            {"source": DELTA | {"starting_version": 1, "starting_timestamp": "2026-01-31"}},
            "source.starting_timestamp",
        ),
        ({"registry": {}}, "registry"),
        ({"registry": REGISTRY | {"path": "./s"}}, "registry"),
        ({"registry": {"path": "./s", "token": "x"}}, "registry.token"),
        ({"registry": REGISTRY | {"username": "u"}}, "registry.username"),
        ({"registry": REGISTRY | {"password": "p"}}, "registry.password"),
        (
            {"registry": REGISTRY | {"username": "u", "password": "p", "token": "t"}},
            "registry.token",
        ),
        ({"registry": REGISTRY | {"key_location": "k"}}, "registry.key_location"),
        ({"registry": {"url": "ftp://r"}}, "registry.url"),
        ({"registry": {"url": "http://u:p@r"}}, "registry.url"),
        ({"registry": {"url": "http://[::1"}}, "registry.url"),
        ({"registry": {"urls": "http://a, nonsense"}}, "registry.urls[1]"),
        ({"payload": PROTOBUF}, ""),
        ({"payload": None}, ""),
        ({"payload.framing": "confluent"}, ""),
        ({"payload.validate": "registry"}, ""),
        ({"payload.subject": "{table}-value"}, "payload.subject"),
        ({"envelope": {"type": "t"}}, "envelope"),
        ({"envelope": ENVELOPE | {"payload": "t"}}, "envelope"),
        ({"envelope": ENVELOPE | {"payload": "a b"}}, "envelope.payload"),
        ({"envelope": ENVELOPE, "registry": REGISTRY, "tables.each": "{topic}"}, "tables.each"),
        ({"tables": {"prefix": "x"}}, "tables"),
        ({"tables.bronze": "Dead_Letters"}, "tables.bronze"),
        ({"tables.each": "dead_letters"}, "tables.each"),
        ({"tables.each": "silver-{type}"}, "tables.each"),
        ({"tables.each": "../{type}"}, "tables.each"),
        ({"tables.each": "{type"}, "tables.each"),
        ({"tables.each": "{}"}, "tables.each"),
        ({"tables.each": "{table}"}, "tables.each"),
        ({"tables.bronze": "_hidden"}, "tables.bronze"),
        ({"tables.prefix": "a/b"}, "tables.prefix"),
        ({"tables.partition_by": "_date,_date"}, "tables.partition_by"),
        ({"tables.partition_by": "a.b"}, "tables.partition_by"),
        ({"tables.partition_by": "_offset"}, "tables.partition_by"),
        ({"tables.partition_by": "_timestamp"}, "tables.partition_by"),
        ({"tables.partition_by": "_dote"}, "tables.partition_by"),
        ({"tables.partition_by": "_topic", "tables.metadata": "offset"}, "tables.partition_by"),
        ({"tables.partition_by": "country", "tables.each": None}, "tables.partition_by"),
        ({"tables.partition_by": "_type"}, "tables.partition_by"),
        (
            {"tables.partition_by": "_type", "tables.bronze": "b", "tables.publisher": "spark"},
            "tables.partition_by",
        ),
        ({"tables.partition_by": "_date", "source": DELTA}, "tables.partition_by"),
        ({"tables.format": "parquet", "tables.publisher": "spark"}, "tables.publisher"),
        ({"cdc": CDC}, "cdc.format"),
        ({"cdc": {"format": "debezium"}, "tables": {"bronze": "b"}}, "tables"),
        ({"spark.conf.spark.master": "local"}, "spark.conf.spark.master"),
        ({"spark.conf.master": "local"}, "spark.conf.master"),
        ({"spark.driver_memory": "4 gigs"}, "spark.driver_memory"),
        ({"lake.path": " "}, "lake.path"),
        ({"lake.path": "a\nb"}, "lake.path"),
        ({"name": "a/b"}, "name"),
        ({"name": "../x"}, "name"),
    ],
)
def test_what_cannot_be_is_refused_at_the_setting_to_blame(
    problems_of: Problems, minimal: str, changes: dict[str, object], path: str
) -> None:
    assert path in blamed(problems_of, minimal, changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"source.security": SASL},
        {"source.topics": "a, b"},
        {"source.bootstrap_servers": ["a:1", "SASL_SSL://b:2", "[::1]:9092"]},
        {"source.starting_offsets": "2026-01-31"},
        {"source.starting_offsets": {"t": {"0": "latest", 1: -2, 2: 5}}},
        {"source": DELTA},
        {"registry": {"urls": "http://a, https://b:1/x"}, "payload": PROTOBUF},
        {"registry": REGISTRY, "payload": PROTOBUF, "envelope": ENVELOPE, "tables.each": "{type}"},
        {"registry": REGISTRY, "payload.subject": "{topic}-{record}"},
        {"tables": {"unified": {"name": "gold", "mode": "wide", "max_columns": 5}}},
        {"tables.each": "silver_{type}_{topic}"},
        {"tables.partition_by": "_date, country, _topic"},
        {"tables.partition_by": "_date", "source": DELTA | {"timestamp": "at"}},
        {"tables.partition_by": "_date", "tables.each": None, "tables.bronze": "raw"},
        {"tables.partition_by": "_type", "tables.each": None, "tables.bronze": "raw"},
        {"tables.format": "parquet"},
        {"cdc": {"format": "debezium"}, "tables.each": "{schema}_{table}"},
        {"cdc": CDC, "source": FILES, "payload": None},
        {"spark.driver_memory": "4G"},
    ],
)
def test_what_can_be_is_accepted(loaded: Load, changes: dict[str, object]) -> None:
    assert loaded(overrides=changes).config


def test_framing_that_is_left_out_follows_from_the_rest(loaded: Load) -> None:
    def framing(**changes: object) -> str:
        payload = loaded(overrides=changes).config.payload
        assert payload is not None
        return payload.framing

    assert framing() == "none"
    assert framing(registry=REGISTRY) == "auto"
    assert framing(registry=REGISTRY, payload=PROTOBUF) == "confluent"
    wrapped = {"envelope": ENVELOPE, "tables.each": "{type}"}
    assert framing(registry=REGISTRY, payload=PROTOBUF, **wrapped) == "none"
    assert framing(registry=REGISTRY, payload=PROTOBUF | {"framing": "auto"}) == "auto"


def test_configuration_is_frozen(loaded: Load) -> None:
    config = loaded().config
    with pytest.raises(ValueError, match="frozen"):
        config.lake.path = "elsewhere"
