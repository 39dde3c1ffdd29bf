"""Translates settings of Kafka's Java client into those of librdkafka.

Pipeline files use the names of the Java client. Tasks and the driver read with librdkafka. Settings
that librdkafka does not have are listed, so that Spark's connector, a Java client, is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""The login modules of the mechanisms with a user name and a password."""

_MOST = 2**31 - 1
_NO_STORE = "is a store that only the Java client reads"


@dataclass(frozen=True, slots=True)
class _Number:
    """A whole number of librdkafka with its bounds; values beyond a bound are set to the bound."""

    name: str
    least: int
    most: int


_TEXTS = {
    "client.id": r".*",
    "client.rack": r".*",
    "client.dns.lookup": r"use_all_dns_ips|resolve_canonical_bootstrap_servers_only",
    "enable.metrics.push": r"true|false",
    "security.protocol": r"PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL",
    "sasl.mechanism": "|".join(map(re.escape, LOGIN_MODULES)),
    "ssl.key.password": r".*",
}
"""Settings with the same name in both clients, and the values that mean the same."""
_NUMBERS = {
    "connections.max.idle.ms": _Number("connections.max.idle.ms", 0, _MOST),
    "metadata.max.age.ms": _Number("metadata.max.age.ms", 1, 86_400_000),
    "receive.buffer.bytes": _Number("socket.receive.buffer.bytes", 0, 100_000_000),
    "reconnect.backoff.max.ms": _Number("reconnect.backoff.max.ms", 0, 3_600_000),
    "reconnect.backoff.ms": _Number("reconnect.backoff.ms", 0, 3_600_000),
    # librdkafka requires one second more than the longest wait of a fetch
    "request.timeout.ms": _Number("socket.timeout.ms", 2_000, 300_000),
    "retry.backoff.max.ms": _Number("retry.backoff.max.ms", 1, 300_000),
    "retry.backoff.ms": _Number("retry.backoff.ms", 1, 300_000),
    "send.buffer.bytes": _Number("socket.send.buffer.bytes", 0, 100_000_000),
    "socket.connection.setup.timeout.ms": _Number(
        "socket.connection.setup.timeout.ms", 1_000, _MOST
    ),
}
_READING_TEXTS = {
    "check.crcs": r"true|false",
    "group.id": r".+",
    "isolation.level": r"read_committed|read_uncommitted",
}
_READING_NUMBERS = {
    "fetch.max.bytes": _Number("fetch.max.bytes", 1_000, _MOST - 512),
    "fetch.max.wait.ms": _Number("fetch.wait.max.ms", 0, 500),
    "fetch.min.bytes": _Number("fetch.min.bytes", 1, 100_000_000),
    "max.partition.fetch.bytes": _Number("fetch.message.max.bytes", 1, 1_000_000_000),
}
"""Settings of consumers only."""
_WITHOUT_MEANING = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "default.api.timeout.ms",
        "exclude.internal.topics",
        "group.instance.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
    }
)
"""Settings of consumer groups and of Java, without effect when offsets are given."""
_PAIRS = (
    ("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
    ("retry.backoff.ms", "retry.backoff.max.ms"),
)
"""Pairs of settings in which the second must not be less than the first."""
_STORES = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
"""Settings that hold certificates or keys themselves, in PEM."""


@dataclass(slots=True)
class Translation:
    """Settings for librdkafka; they hold secrets."""

    connection: dict[str, str] = field(default_factory=dict, repr=False)
    """Settings of every client."""
    reading: dict[str, str] = field(default_factory=dict, repr=False)
    """Settings of consumers only."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Settings that cannot be translated, with the reason and without their values."""


def translate(settings: Mapping[str, str]) -> Translation:
    """Translate settings of the Java client for librdkafka."""
    values = {name: value.strip() for name, value in settings.items()}
    translation = Translation()
    stores = {name for name in values if name.startswith(("ssl.truststore.", "ssl.keystore."))}
    for name in values.keys() - stores - _WITHOUT_MEANING:
        connection = dict(_translated(name, values[name], _TEXTS, _NUMBERS))
        reading = dict(_translated(name, values[name], _READING_TEXTS, _READING_NUMBERS))
        if not connection and not reading:
            translation.unknown[name] = "has no counterpart in librdkafka, or not with this value"
        translation.connection |= connection
        translation.reading |= reading
    _add_stores({name: values[name] for name in stores}, translation)
    for least, most in _PAIRS:
        if least in translation.connection:
            bounds = (
                translation.connection[name]
                for name in (least, most)
                if name in translation.connection
            )
            translation.connection[most] = max(bounds, key=int)
    return translation


def _translated(
    name: str, value: str, texts: Mapping[str, str], numbers: Mapping[str, _Number]
) -> Iterator[tuple[str, str]]:
    """Yield the translation of one setting; nothing when there is none."""
    if name in texts and re.fullmatch(texts[name], value):
        yield name, value
    elif name in numbers and re.fullmatch(r"-?[0-9]{1,18}", value):
        number = numbers[name]
        yield number.name, str(min(number.most, max(number.least, int(value))))
    elif texts is _TEXTS and name == "ssl.endpoint.identification.algorithm":
        if value.lower() in ("https", ""):
            yield name, value.lower() or "none"
    elif texts is _TEXTS and name == "sasl.jaas.config":
        yield from _login(value).items()


def _add_stores(values: Mapping[str, str], translation: Translation) -> None:
    """Translate the settings of trust stores and key stores."""
    trust = values.get("ssl.truststore.type", "JKS").upper()
    keys = values.get("ssl.keystore.type", "JKS").upper()
    translation.connection |= {
        _STORES[name]: value for name, value in values.items() if name in _STORES
    }
    if path := values.get("ssl.truststore.location"):
        if trust == "PEM":
            translation.connection["ssl.ca.location"] = path
        else:
            translation.unknown["ssl.truststore.location"] = _NO_STORE
    if path := values.get("ssl.keystore.location"):
        if keys == "PEM":
            translation.connection |= {"ssl.certificate.location": path, "ssl.key.location": path}
        elif keys == "PKCS12":
            translation.connection["ssl.keystore.location"] = path
            if "ssl.keystore.password" in values:
                translation.connection["ssl.keystore.password"] = values["ssl.keystore.password"]
        else:
            translation.unknown["ssl.keystore.location"] = _NO_STORE


# Parsing of the Java client's login setting: a class, a flag, options.

_QUOTED = r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)*'"
_OPTION = rf"([\w.]+)\s*=\s*({_QUOTED}|[^\s;\"']+)"
_JAAS = re.compile(rf"\s*([\w.]+)\s+required((?:\s+{_OPTION})*)\s*;?\s*", re.S)


def _login(jaas: str) -> dict[str, str]:
    """Return user and password of a login with these two options only; empty for any other."""
    match = _JAAS.fullmatch(jaas)
    if match is None or match[1] not in LOGIN_MODULES.values():
        return {}
    options = {name: _unquoted(value) for name, value in re.findall(_OPTION, match[2])}
    if options.keys() != {"username", "password"}:
        return {}
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _unquoted(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.S)
