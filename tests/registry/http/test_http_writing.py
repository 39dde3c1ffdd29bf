"""What is said to a registry when a schema is registered, checked or deleted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from distributary.errors import (
    ConfigError,
    ErrorCode,
    IncompatibleSchemaError,
    InvalidSchemaError,
    RegistryError,
    SchemaNotFoundError,
)
from distributary.model.record import Format
from distributary.registry.compatibility.levels import Level
from distributary.registry.http.http_registry import HttpRegistry
from tests.registry.loopback import Says, by_path, no, registry, says, serving

if TYPE_CHECKING:
    from distributary_lab.simulate.base import SchemaSink

TEXT = 'syntax = "proto3"; message Chess { string player = 1; }'
REFERENCE = {"name": "b.proto", "subject": "base", "version": 1}
CHECK = "POST /compatibility/subjects/chess/versions"


def body_of(asked: Any) -> Any:
    return json.loads(asked.body)


def test_a_schema_is_registered_with_its_format_and_references() -> None:
    with serving(by_path({"POST /subjects/chess/versions": {"id": 7}})) as server:
        with registry(server.url) as writer:
            assert writer.register("chess", TEXT, references=[REFERENCE]) == 7
            assert writer.register("chess", '"string"', format=Format.AVRO) == 7
    sent = {"schema": TEXT, "schemaType": "PROTOBUF", "references": [REFERENCE]}
    assert body_of(server.asked[0]) == sent
    assert body_of(server.asked[1])["schemaType"] == "AVRO"
    assert server.asked[0].headers["content-type"] == "application/vnd.schemaregistry.v1+json"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (no(409, 409, "FIELD_SCALAR_KIND_CHANGED"), IncompatibleSchemaError),
        (no(422, 42201, "does not parse"), InvalidSchemaError),
        (no(422, 422, "Unrecognized field"), InvalidSchemaError),
    ],
)
def test_a_registration_that_is_refused(reply: Says, error: type[RegistryError]) -> None:
    with serving(lambda _: reply) as server, registry(server.url) as writer:
        with pytest.raises(error) as caught:
            writer.register("chess", TEXT)
        assert json.loads(reply.body)["message"] in caught.value.evidence
        assert len(server.asked) == 1


def test_an_incomplete_reference_is_not_sent() -> None:
    with serving(lambda _: says({"id": 1})) as server, registry(server.url) as writer:
        with pytest.raises(InvalidSchemaError):
            writer.register("chess", TEXT, references=[{"name": "b.proto"}])
        assert server.asked == []


@pytest.mark.parametrize(
    ("reply", "problems"),
    [
        (says({"is_compatible": True}), []),
        (says({"is_compatible": True, "messages": ["a remark"]}), []),
        (says({"is_compatible": False, "messages": ["x", "y\nz"]}), ["x", "y\\nz"]),
        (no(404, 40401), []),
    ],
)
def test_checking_a_schema(reply: Says, problems: list[str]) -> None:
    answers = {f"{CHECK}?verbose=true": reply}
    with serving(by_path(answers)) as server, registry(server.url) as writer:
        assert writer.check("chess", TEXT, [REFERENCE]) == problems
        assert body_of(server.asked[0])["references"] == [REFERENCE]


def test_a_registry_that_does_not_say_why() -> None:
    reply = says({"is_compatible": False})
    with serving(lambda _: reply) as server, registry(server.url) as writer:
        assert len(writer.check("chess", TEXT)) == 1


def test_a_registry_that_compares_with_one_version_only() -> None:
    answers = {f"{CHECK}/latest?verbose=true": {"is_compatible": False, "messages": ["x"]}}
    with serving(by_path(answers)) as server, registry(server.url) as writer:
        assert writer.check("chess", TEXT) == ["x"]


def test_a_schema_that_cannot_be_checked() -> None:
    with serving(lambda _: no(422, 42201)) as server, registry(server.url) as writer:
        with pytest.raises(InvalidSchemaError):
            writer.check("chess", "garbage")


def test_levels_are_read_with_the_default_behind_them() -> None:
    answers = {
        "GET /config/chess?defaultToGlobal=true": {"compatibilityLevel": "FULL"},
        "GET /config/go?defaultToGlobal=true": {"compatibility": "NONE"},
        "GET /config/old?defaultToGlobal=true": no(404, 40408),
        "GET /config/new?defaultToGlobal=true": no(404, 40401),
        "GET /config": {"compatibilityLevel": "FORWARD"},
    }
    with serving(by_path(answers)) as server, registry(server.url) as writer:
        found = [writer.compatibility(s) for s in ("chess", "go", "old", "new", None)]
    assert found == [Level.FULL, Level.NONE, Level.FORWARD, Level.FORWARD, Level.FORWARD]


def test_levels_are_set_and_taken_away() -> None:
    answers = {
        "PUT /config/chess": {"compatibility": "FULL"},
        "PUT /config": {"compatibility": "NONE"},
        "DELETE /config/chess": {"compatibilityLevel": "FULL"},
        "DELETE /config/go": no(404, 40401),
    }
    with serving(by_path(answers)) as server, registry(server.url) as writer:
        writer.set_compatibility("chess", "full")
        writer.set_compatibility(None, Level.NONE)
        writer.set_compatibility("chess", None)
        writer.set_compatibility("go", None)
        with pytest.raises(ConfigError):
            writer.set_compatibility("chess", "SOMEWHAT")
    assert body_of(server.asked[0]) == {"compatibility": "FULL"}
    assert [asked.method for asked in server.asked] == ["PUT", "PUT", "DELETE", "DELETE"]


def test_deleting_a_subject() -> None:
    answers = {
        "DELETE /subjects/chess": [2, 1],
        "DELETE /subjects/chess?permanent=true": [1, 2],
        "DELETE /subjects/gone": no(404, 40404),
        "DELETE /subjects/gone?permanent=true": [1],
        "DELETE /subjects/never": no(404, 40401),
        "DELETE /subjects/base": no(422, 42206, "referenced"),
    }
    with serving(by_path(answers)) as server, registry(server.url) as writer:
        assert writer.delete_subject("chess") == (1, 2)
        assert writer.delete_subject("chess", permanent=True) == (1, 2)
        assert writer.delete_subject("gone", permanent=True) == (1,)
        for missing in ("gone", "never"):
            with pytest.raises(SchemaNotFoundError):
                writer.delete_subject(missing)
        for permanent in (False, True):
            with pytest.raises(RegistryError) as caught:
                writer.delete_subject("base", permanent=permanent)
            assert caught.value.code is ErrorCode.REGISTRY_REFUSED
        assert f"{server.paths[2]}" == "DELETE /subjects/chess?permanent=true"


def test_it_is_what_producers_take() -> None:
    with registry("http://127.0.0.1:1") as writer:
        sink: SchemaSink = writer
        assert isinstance(sink, HttpRegistry)
