"""Settings of Kafka's Java client in the words of librdkafka, which has other names for some.

Pipeline files name settings as the Java client does. Tasks and the driver read with librdkafka;
what it has no word for is named, so that Spark's connector, which is a Java client, can be used.
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
"""What proves who a client is with a user and a password, by mechanism."""

_MOST = 2**31 - 1
_NO_STORE = "is a store that only Java reads"


@dataclass(frozen=True, slots=True)
class _Number:
    """A whole number that librdkafka takes between two bounds; beyond them the bound is meant."""

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
"""Words that mean the same to both, and which values do."""
_NUMBERS = {
    "connections.max.idle.ms": _Number("connections.max.idle.ms", 0, _MOST),
    "metadata.max.age.ms": _Number("metadata.max.age.ms", 1, 86_400_000),
    "receive.buffer.bytes": _Number("socket.receive.buffer.bytes", 0, 100_000_000),
    "reconnect.backoff.max.ms": _Number("reconnect.backoff.max.ms", 0, 3_600_000),
    "reconnect.backoff.ms": _Number("reconnect.backoff.ms", 0, 3_600_000),
    # librdkafka refuses less than a second more than a fetch may wait
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
"""Of consumers alone."""
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
"""Of consumers in a group, and of Java: whoever reads given offsets needs none of them."""
_PAIRS = (
    ("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
    ("retry.backoff.ms", "retry.backoff.max.ms"),
)
"""The second may not be less than the first."""
_STORES = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
"""Certificates and keys that stand in the setting itself, in PEM."""


@dataclass(slots=True)
class Translation:
    """The same settings for librdkafka; holds secrets."""

    connection: dict[str, str] = field(default_factory=dict, repr=False)
    """Of every client."""
    reading: dict[str, str] = field(default_factory=dict, repr=False)
    """Of consumers alone."""
    unknown: dict[str, str] = field(default_factory=dict)
    """What cannot be said, and why; without its value."""


def translate(settings: Mapping[str, str]) -> Translation:
    """Settings of the Java client, by its names, for librdkafka."""
    said = {name: value.strip() for name, value in settings.items()}
    found = Translation()
    stores = {name for name in said if name.startswith(("ssl.truststore.", "ssl.keystore."))}
    for name in said.keys() - stores - _WITHOUT_MEANING:
        connection = dict(_one(name, said[name], _TEXTS, _NUMBERS))
        reading = dict(_one(name, said[name], _READING_TEXTS, _READING_NUMBERS))
        if not connection and not reading:
            found.unknown[name] = "has no counterpart in librdkafka, or not with this value"
        found.connection |= connection
        found.reading |= reading
    _add_stores({name: said[name] for name in stores}, found)
    for least, most in _PAIRS:
        if least in found.connection:
            values = (found.connection[name] for name in (least, most) if name in found.connection)
            found.connection[most] = max(values, key=int)
    return found


def _one(
    name: str, value: str, texts: Mapping[str, str], numbers: Mapping[str, _Number]
) -> Iterator[tuple[str, str]]:
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


def _add_stores(said: Mapping[str, str], found: Translation) -> None:
    trust = said.get("ssl.truststore.type", "JKS").upper()
    keys = said.get("ssl.keystore.type", "JKS").upper()
    found.connection |= {_STORES[name]: value for name, value in said.items() if name in _STORES}
    if path := said.get("ssl.truststore.location"):
        if trust == "PEM":
            found.connection["ssl.ca.location"] = path
        else:
            found.unknown["ssl.truststore.location"] = _NO_STORE
    if path := said.get("ssl.keystore.location"):
        if keys == "PEM":
            found.connection |= {"ssl.certificate.location": path, "ssl.key.location": path}
        elif keys == "PKCS12":
            found.connection["ssl.keystore.location"] = path
            if "ssl.keystore.password" in said:
                found.connection["ssl.keystore.password"] = said["ssl.keystore.password"]
        else:
            found.unknown["ssl.keystore.location"] = _NO_STORE


# The line that the Java client's login is configured with: a class, a flag, options.

_QUOTED = r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)*'"
_OPTION = rf"([\w.]+)\s*=\s*({_QUOTED}|[^\s;\"']+)"
_JAAS = re.compile(rf"\s*([\w.]+)\s+required((?:\s+{_OPTION})*)\s*;?\s*", re.S)


def _login(jaas: str) -> dict[str, str]:
    """User and password of a login that is nothing else; empty for any other."""
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
