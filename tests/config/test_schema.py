from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from distributary.config.file.show import _texts, descriptions, json_schema
from distributary.config.load import every_model, every_setting, load_text, settings
from tools.docs import settings as reference

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def document(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from leaves(below, (*path, index))
    else:
        yield path


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"].endswith("2020-12/schema")


def test_every_case_is_valid(case: Path) -> None:
    VALIDATOR.validate(document(case.read_text()))


def test_a_variable_may_stand_for_every_scalar(case: Path) -> None:
    content = document(case.read_text())
    for path in leaves(content):
        changed = document(case.read_text())
        target = changed
        for part in path[:-1]:
            target = target[part]
        target[path[-1]] = "${env:ANY:-x}"
        VALIDATOR.validate(changed)


@pytest.mark.parametrize(
    "extra",
    [
        "limits: {max_payload_bytes: 16MiB, max_depth: 5}",
        "limits: {max_payload_bytes: 1024}",
        "run: {lease: 500ms, publish_threads: 2}",
        "spark: {conf: {spark.a: 8, spark.b: true, spark.c: x}}",
        "registry: {url: http://h, token: 12345}",
        "registry: {urls: [http://a, http://b]}",
        "trigger: every 10s",
        "evolution: {new_field: ignore}",
    ],
)
def test_what_loads_is_valid(minimal: str, extra: str) -> None:
    text = f"{minimal}{extra}\n"
    assert load_text(text, environ={})
    VALIDATOR.validate(document(text))


@pytest.mark.parametrize(
    "starting",
    ["latest", "2026-01-31T12:00:00Z", "{events: {0: 5, 1: latest}}", "${env:X:-latest}"],
)
def test_every_way_to_start_is_valid(minimal: str, starting: str) -> None:
    text = minimal.replace("topics:", f"starting_offsets: {starting}\n  topics:")
    assert load_text(text, environ={})
    # JSON has no dates: editors see the text
    content = document(text.replace(starting, f'"{starting}"') if "T12" in starting else text)
    if isinstance(content["source"]["starting_offsets"], dict):
        content["source"]["starting_offsets"] = {"events": {"0": 5, "1": "latest"}}
    VALIDATOR.validate(content)


@pytest.mark.parametrize(
    "extra",
    [
        "banana: 1",
        "limits: {max_depth: many}",
        "limits: {max_depth: 0}",
        "limits: {max_payload_bytes: large}",
        "run: {lease: 10}",
        "trigger: sometimes",
        "evolution: {new_field: explode}",
        "registry: http://h",
        "cdc: {format: datastream, log: perhaps}",
    ],
)
def test_what_does_not_load_is_invalid(minimal: str, extra: str) -> None:
    assert not VALIDATOR.is_valid(document(f"{minimal}{extra}\n"))


def test_every_setting_is_described() -> None:
    for model in every_model():
        assert model.__doc__
        for key, about in descriptions(model).items():
            assert about, f"{model.__name__}.{key}"
        properties = (SCHEMA["$defs"] | {"PipelineConfig": SCHEMA})[model.__name__]["properties"]
        assert set(properties) == set(settings((model,)))
        assert all(value["description"] for value in properties.values())


def test_a_package_without_its_sources_has_a_schema_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(module: object) -> str:
        raise OSError("source code not available")

    monkeypatch.setattr(inspect, "getsource", gone)
    _texts.cache_clear()
    try:
        bare = json_schema()
    finally:
        _texts.cache_clear()
    assert bare["properties"].keys() == SCHEMA["properties"].keys()
    assert not bare["properties"]["source"]["description"]


def test_defaults_are_as_they_would_be_written() -> None:
    assert SCHEMA["$defs"]["Run"]["properties"]["lease"]["default"] == "15s"
    assert SCHEMA["$defs"]["Limits"]["properties"]["max_payload_bytes"]["default"] == "16MiB"
    assert SCHEMA["properties"]["trigger"]["default"] == "available_now"
    for name, section in SCHEMA["$defs"].items():
        for key, setting in section.get("properties", {}).items():
            if "default" in setting:
                rest = {k: v for k, v in setting.items() if k != "default"}
                whole = SCHEMA | rest | {"type": ["object", "array", "string", "number", "boolean"]}
                whole |= {"properties": {}, "required": []}
                assert Draft202012Validator(whole).is_valid(setting["default"]), (name, key)


def test_the_reference_has_every_setting() -> None:
    page = reference.page()
    for path in every_setting():
        assert f"| `{path[-1]}` |" in page
    assert "| `lease` | `15s` |" in page
    assert page.count("## `source`") == 3
    assert page == reference.page()
