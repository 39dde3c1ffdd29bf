"""Metrics over HTTP, as Prometheus asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse
from pydantic import TypeAdapter, ValidationError

from distributary.config.alerts import Listen
from distributary.errors import ErrorCode, SetupError
from distributary.observe.events import EventBus
from distributary.observe.metrics import Metrics
from distributary.supervise.server import Answers, ListenAddress, serving
from tests.observe.test_metrics import settled


@contextmanager
def served(metrics: Metrics, listen: str, **more: Any) -> Iterator[str]:
    with serving(ListenAddress.parse(listen), Answers(metrics=metrics.render, **more)) as url:
        yield f"{url}/metrics"


def test_prometheus_gets_what_was_told() -> None:
    metrics, bus = Metrics(), EventBus()
    bus.subscribe(metrics.listen)
    with served(metrics, "127.0.0.1:0") as url:
        bus.publish(settled())
        with urlopen(url) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            names = {family.name for family in parse(answer.read().decode())}
    assert {"distributary_records_read", "distributary_process_tree_memory_bytes"} <= names


def test_open_metrics_are_given_to_whoever_asks_for_them() -> None:
    with served(Metrics(), "127.0.0.1:0") as url:
        request = Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        with urlopen(request) as answer:
            assert "openmetrics" in answer.headers["Content-Type"]
            names = {f.name for f in parse_open(answer.read().decode())}
    assert "distributary_build_info" in names


def test_it_ends_with_the_block_and_the_port_is_free_again() -> None:
    with served(Metrics(), "127.0.0.1:0") as url:
        port = url.split(":")[2].split("/")[0]
    with served(Metrics(), f"127.0.0.1:{port}") as again:
        assert again == url
    with pytest.raises(OSError):
        urlopen(url)


def test_a_port_that_is_taken_is_an_error_with_a_name() -> None:
    with served(Metrics(), "127.0.0.1:0") as url:
        port = url.split(":")[2].split("/")[0]
        with pytest.raises(SetupError) as error, served(Metrics(), f"127.0.0.1:{port}"):
            pass
    assert error.value.code is ErrorCode.PORT_TAKEN


def test_an_address_that_is_not_of_this_machine_is_an_error_with_a_name() -> None:
    with pytest.raises(SetupError) as error, served(Metrics(), "192.0.2.1:9464", token="t"):
        pass
    assert error.value.code is ErrorCode.CONFIG_INVALID


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (9464, ("127.0.0.1", 9464)),
        ("localhost:80", ("localhost", 80)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_an_address_may_be_written_in_these_ways(text: str | int, address: tuple[str, int]) -> None:
    assert ListenAddress.parse(TypeAdapter(Listen).validate_python(text)) == ListenAddress(*address)


@pytest.mark.parametrize(
    "text", ["", "host", ":9464", "host:", "host:99999", "a b:1", "h:1:2", True]
)
def test_what_is_no_address_is_refused(text: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Listen).validate_python(text)
