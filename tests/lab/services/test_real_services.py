"""What the shared broker and registry promise to tests: data that survives, and security."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from distributary_lab.services.processes import HOST, running
from distributary_lab.services.services import ServiceState
from tests.services.secured import MECHANISMS, SecuredServices
from tests.services.shared import unique

ORDER = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
LARGE = 100 * 1024 * 1024

Settings = dict[str, Any]


def ask(url: str, body: object = None, *, method: str | None = None, authority: str = "") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    context = ssl.create_default_context(cafile=authority) if authority else None
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return json.load(answer)


def send(
    services: SecuredServices, topic: str, value: bytes, settings: Settings | None = None
) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": services.kafka, "log_level": 0} | (settings or {}))
    producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert failed == [None]


def first_of(services: SecuredServices, topic: str, settings: Settings | None = None) -> bytes:
    consumer = Consumer(
        {"bootstrap.servers": services.kafka, "group.id": topic, "log_level": 0} | (settings or {})
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(60)
        assert message is not None and message.error() is None
        return message.value() or b""
    finally:
        consumer.close()


def is_let_in(address: str, settings: Settings) -> bool:
    refusals: list[KafkaError] = []
    about: Settings = {"bootstrap.servers": address, "log_level": 0, "error_cb": refusals.append}
    client = AdminClient(about | settings)
    # the broker is there: a client that finds none was sent away
    while not any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in refusals):
        try:
            return bool(client.list_topics(timeout=0.5).brokers)
        except KafkaException:
            client.poll(0)
    return False


def test_records_and_schemas_survive_a_crash(services: SecuredServices) -> None:
    topic, subject = unique("survives"), unique("survives")
    addresses = services.kafka, services.registry
    send(services, topic, b"one")
    known = ask(f"{services.registry}/subjects/{subject}/versions", {"schema": ORDER})
    # at once: what was answered must be safe
    services.kill_registry()
    services.kill_kafka()
    assert {each.state for each in services.status().values()} == {ServiceState.DOWN}
    services.start()
    assert (services.kafka, services.registry) == addresses
    assert first_of(services, topic) == b"one"
    assert ask(f"{services.registry}/schemas/ids/{known['id']}")["schema"] == ORDER
    assert {each.state for each in services.status().values()} == {ServiceState.UP}


def test_everything_listens_on_loopback_only(services: SecuredServices) -> None:
    live = running(services.folder)
    heard = [
        connection.laddr.ip
        for each in live.values()
        for process in each.processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(heard) >= len(live) == 2
    assert set(heard) <= {HOST, f"::ffff:{HOST}"}


def test_a_very_large_record(services: SecuredServices) -> None:
    topic = unique("large")
    size = {"message.max.bytes": LARGE + 1024}
    send(services, topic, bytes(LARGE), size)
    fetch = {"fetch.message.max.bytes": LARGE + 1024, "receive.message.max.bytes": LARGE * 2}
    assert len(first_of(services, topic, fetch)) == LARGE


def test_subjects_can_be_deleted(services: SecuredServices) -> None:
    subject = unique("deleted")
    url = f"{services.registry}/subjects/{subject}"
    ask(f"{services.registry}/config/{subject}", {"compatibility": "FULL"}, method="PUT")
    ask(f"{url}/versions", {"schema": ORDER})
    assert ask(f"{services.registry}/config/{subject}")["compatibilityLevel"] == "FULL"
    assert ask(url, method="DELETE") == [1]
    assert ask(f"{url}?permanent=true", method="DELETE") == [1]
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(f"{url}/versions")
    assert caught.value.code == 404
    caught.value.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_listeners_with_a_password(services: SecuredServices, mechanism: str) -> None:
    given = services.security
    right = {"sasl.mechanism": mechanism, "sasl.username": given.username}
    right["sasl.password"] = given.password
    plain: Settings = {"security.protocol": "SASL_PLAINTEXT"}
    secret: Settings = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(given.authority)}
    assert is_let_in(given.sasl_plaintext, plain | right)
    assert is_let_in(given.sasl_ssl, secret | right)
    assert not is_let_in(given.sasl_plaintext, plain | right | {"sasl.password": "wrong"})


def test_a_listener_with_certificates(services: SecuredServices) -> None:
    given = services.security
    anybody: Settings = {"security.protocol": "SSL", "ssl.ca.location": str(given.authority)}
    client = {
        "ssl.certificate.location": str(given.certificate),
        "ssl.key.location": str(given.key),
    }
    assert is_let_in(given.ssl, anybody | client)
    assert not is_let_in(given.ssl, anybody)


def test_an_encrypted_registry(services: SecuredServices) -> None:
    given = services.security
    assert isinstance(ask(f"{given.registry}/subjects", authority=str(given.authority)), list)
    with pytest.raises(urllib.error.URLError):
        ask(f"{given.registry}/subjects")
