"""Whether the broker and the registry of a pipeline answer, and what to type when they do not."""

from __future__ import annotations

import ipaddress
import shlex
from urllib.parse import urlsplit

from distributary.cli.actions.check import Check, State
from distributary.cli.words import counted, listed
from distributary.config.kafka import KafkaSource
from distributary.config.registry import Registry
from distributary.config.secrets import hide_credentials
from distributary.errors import ErrorCode, RegistryUnavailableError, SourceUnavailableError

_KAFKA_PORT, _REGISTRY_PORT = 9092, 8081
"""Those of `dev up`."""


def broker_check(source: KafkaSource) -> Check:
    """Asks the broker for the topics of the pipeline and what they hold."""
    from distributary.source.kafka_offsets import Broker

    servers = source.bootstrap_servers
    broker = Broker(source.client_options())
    try:
        partitions = broker.partitions(source.topics, source.topic_pattern)
        newest, oldest = broker.latest(partitions), broker.earliest(partitions)
    except SourceUnavailableError as error:
        found = f"{error.what}: {error.evidence}" if error.evidence else error.what
        mend = _create(source) if error.what.startswith("the topic") else _start_broker(servers)
        return Check("broker", State.FAIL, found, f"a broker at {servers}", mend)
    if not partitions:
        pattern = source.topic_pattern or ""
        return Check(
            "broker",
            State.WARN,
            f"{servers} answers, but no topic fits {pattern}",
            "a topic to read",
            "create one, or correct source.topic_pattern",
        )
    topics = sorted({topic for topic, _ in partitions})
    records = sum(newest[one] - oldest[one] for one in partitions)
    found = (
        f"{servers} has {counted(len(partitions), 'partition')} of {listed(topics, most=3)}, "
        f"with {counted(records, 'offset')} to read"
    )
    return Check("broker", State.PASS, found)


def registry_check(settings: Registry) -> Check:
    """Asks the folder or the server for its subjects."""
    from distributary.registry.files import FileRegistry
    from distributary.registry.http import HttpRegistry

    where = settings.path or ", ".join(map(hide_credentials, settings.places))
    registry = HttpRegistry(settings) if settings.path is None else FileRegistry(settings.path)
    try:
        subjects = registry.subjects()
    except RegistryUnavailableError as error:
        # garbage is an answer: something else listens there
        if settings.path is not None or error.code is not ErrorCode.REGISTRY_UNAVAILABLE:
            raise
        found = f"{error.what}: {error.evidence}" if error.evidence else error.what
        mend = _start_registry(settings)
        return Check("registry", State.FAIL, found, f"a registry at {where}", mend)
    state = State.PASS if subjects else State.WARN
    mend = "register the schemas before records arrive"
    if not subjects and settings.context is not None and isinstance(registry, HttpRegistry):
        known = registry.contexts()
        if settings.context not in known:
            mend = f"correct registry.context: there are {listed(sorted(known), most=5)}"
    return Check("registry", state, f"{counted(len(subjects), 'subject')} in {where}", mend=mend)


def _start_broker(servers: str) -> str:
    addresses = [urlsplit(f"//{each.rpartition('://')[2]}") for each in servers.split(",")]
    host, port = addresses[0].hostname or "", addresses[0].port or _KAFKA_PORT
    if all(_is_loopback(each.hostname or "") for each in addresses):
        other = f" --kafka-port {port}" if port != _KAFKA_PORT else ""
        return f"distributary dev up{other}"
    return f"nc -vz {shlex.quote(host)} {port}"


def _start_registry(settings: Registry) -> str:
    address = urlsplit(settings.addresses[0])
    host = address.hostname or ""
    if _is_loopback(host):
        port = address.port or _REGISTRY_PORT
        other = f" --registry-port {port}" if port != _REGISTRY_PORT else ""
        return f"distributary dev up{other}"
    plain = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl().rstrip("/")
    return f"curl -sS {shlex.quote(f'{plain}/subjects')}"


def _create(source: KafkaSource) -> str:
    topics = " ".join(f"--topic {shlex.quote(each)}" for each in source.topics[:1])
    server = source.bootstrap_servers.split(",")[0]
    return f"kafka-topics.sh --bootstrap-server {server} --create --if-not-exists {topics}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
