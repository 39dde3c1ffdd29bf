"""What is read from a registry's answers, and which questions are asked for it."""

from __future__ import annotations

import base64
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from distributary.errors import (
    ConfigError,
    ErrorCode,
    InvalidSchemaError,
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from distributary.model.record import Format, SubjectVersion
from distributary.registry.base import SchemaRegistry
from distributary.registry.compile.protobuf_compiler import compile_proto
from distributary.registry.http.client import SchemaShape
from tests.registry.loopback import Asked, Says, by_path, no, registry, says, serving

PROTO3 = 'syntax = "proto3";'
CHESS = PROTO3 + "package game; message Chess { string player = 1; } message Move {}"
GUID = UUID("4f6e2a9c-1b2d-4c3e-8f5a-6b7c8d9e0f1a")
VERSIONS = "GET /schemas/ids/7/versions"


def protobuf(text: str, *references: tuple[str, str, int], **more: Any) -> dict[str, Any]:
    given = [{"name": n, "subject": s, "version": v} for n, s, v in references]
    return {"schema": text, "schemaType": "PROTOBUF", "references": given, **more}


def chess(**more: Any) -> dict[str, Any]:
    """The answers about one schema, and whatever else is given."""
    return {
        "GET /schemas/ids/7": protobuf(CHESS),
        f"{VERSIONS}?deleted=true": [{"subject": "chess-value", "version": 3}],
        **more,
    }


def test_a_schema_by_id() -> None:
    with serving(by_path(chess())) as server, registry(server.url) as reader:
        seam: SchemaRegistry = reader
        found = seam.by_id(7)
        assert (found.id, found.format, found.message) == (7, Format.PROTOBUF, "game.Chess")
        assert found.messages == ("game.Chess", "game.Move")
        assert found.subjects == (SubjectVersion("chess-value", 3),)
        assert server.paths == ["GET /schemas/ids/7", f"{VERSIONS}?deleted=true"]
        assert reader.text(7) == CHESS


def test_an_address_may_have_a_path_and_a_slash() -> None:
    with serving(by_path({"GET /apis/v7/subjects": ["b", "a"]})) as server:
        for path in ("/apis/v7", "/apis/v7/"):
            with registry(server.url + path) as reader:
                assert reader.subjects() == ("a", "b")
                assert repr(reader) == f"HttpRegistry({server.url}/apis/v7)"


def test_versions_of_a_subject() -> None:
    version = protobuf(CHESS, id=7, version=3, subject="chess-value")
    answers = {
        "GET /subjects/chess-value/versions": [3, 1],
        "GET /subjects/chess-value/versions/latest": version,
        "GET /subjects/chess-value/versions/3": version,
        "GET /subjects/chess-value/versions/2": no(404, 40402),
    }
    with serving(by_path(chess(**answers))) as server, registry(server.url) as reader:
        assert reader.versions("chess-value") == (1, 3)
        assert reader.latest("chess-value") == reader.version("chess-value", 3) == reader.by_id(7)
        with pytest.raises(SchemaNotFoundError):
            reader.version("chess-value", 2)
        asked = len(server.asked)
        for impossible in (0, -1, 2**31):
            with pytest.raises(SchemaNotFoundError):
                reader.version("chess-value", impossible)
        assert len(server.asked) == asked


def test_ids_that_no_registry_can_have_are_not_asked_for() -> None:
    with serving(by_path({})) as server, registry(server.url) as reader:
        for impossible in (-1, 2**31, 2**32 - 1):
            with pytest.raises(SchemaNotFoundError):
                reader.by_id(impossible)
        assert server.asked == []


def test_places_that_still_stand_come_first() -> None:
    a, b, c = ({"subject": s, "version": 1} for s in ("archive", "blitz", "chess"))
    answers = {f"{VERSIONS}?deleted=true": [c, a, b], VERSIONS: [c, b]}
    with serving(by_path(chess(**answers))) as server, registry(server.url) as reader:
        assert [p.subject for p in reader.by_id(7).subjects] == ["blitz", "chess", "archive"]


@pytest.mark.parametrize("reply", [no(404, 40403), says([])])
def test_a_schema_without_a_place(reply: Says) -> None:
    answers = chess(**{f"{VERSIONS}?deleted=true": reply})
    with serving(by_path(answers)) as server, registry(server.url) as reader:
        assert reader.by_id(7).subjects == ()
        assert reader.by_id(7).label() == "id 7"


def test_places_the_long_way() -> None:
    answers = {
        "GET /schemas/ids/7": protobuf(CHESS),
        "GET /schemas/ids/7/subjects": ["go", "chess", "gone"],
        "POST /subjects/chess": {"id": 7, "version": 2, "subject": "chess"},
        "POST /subjects/go": {"id": 7, "version": 5, "subject": "go"},
        "POST /subjects/gone": no(404, 40401),
    }
    with serving(by_path(answers)) as server, registry(server.url) as reader:
        assert reader.by_id(7).subjects == (SubjectVersion("chess", 2), SubjectVersion("go", 5))
        del answers["GET /schemas/ids/7/subjects"]
        assert reader.by_id(7).subjects == ()


@pytest.mark.parametrize("reply", [Says(404, b"<html>"), Says(503)])
def test_places_are_not_forgotten_because_the_registry_restarts(reply: Says) -> None:
    def answer(asked: Asked) -> Says:
        return says(protobuf(CHESS)) if asked.path == "/schemas/ids/7" else reply

    with serving(answer) as server, registry(server.url) as reader:
        with pytest.raises(RegistryUnavailableError):
            reader.by_id(7)
        with pytest.raises(RegistryUnavailableError):
            reader.by_guid(GUID)


DIAMOND = {
    "GET /schemas/ids/7": protobuf(
        PROTO3 + 'import "l.proto"; import "r.proto"; message Top { L l = 1; R r = 2; }',
        ("l.proto", "left", 1),
        ("r.proto", "right", 4),
    ),
    "GET /subjects/left/versions/1?deleted=true": protobuf(
        PROTO3 + 'import "b.proto"; message L { B b = 1; }', ("b.proto", "base", 2)
    ),
    "GET /subjects/right/versions/4?deleted=true": protobuf(
        PROTO3 + 'import "b.proto"; message R { B b = 1; }', ("b.proto", "base", 2)
    ),
    "GET /subjects/base/versions/2?deleted=true": protobuf(PROTO3 + "message B { int32 n = 1; }"),
    f"{VERSIONS}?deleted=true": [],
}


def test_references_are_followed_to_the_end_and_asked_for_once() -> None:
    now = [0.0]
    with serving(by_path(DIAMOND)) as server, registry(server.url, clock=lambda: now[0]) as reader:
        found = reader.by_id(7)
        files = FileDescriptorSet.FromString(found.body).file
        assert {"l.proto", "r.proto", "b.proto"} <= {file.name for file in files}
        assert found.message == "Top"
        assert len(server.asked) == 5 == len(set(server.paths))
        reader.by_id(7)
        assert len(server.asked) == 7
        now[0] += 61
        reader.by_id(7)
        assert len(server.asked) == 12


def test_a_circle_of_references_ends() -> None:
    answers = {
        "GET /schemas/ids/7": protobuf(
            PROTO3 + 'import "a.proto"; message T { A a = 1; }', ("a.proto", "a", 1)
        ),
        "GET /subjects/a/versions/1?deleted=true": protobuf(
            PROTO3 + 'import "b.proto"; message A { B b = 1; }', ("b.proto", "b", 1)
        ),
        "GET /subjects/b/versions/1?deleted=true": protobuf(
            PROTO3 + 'import "a.proto"; message B { A a = 1; }', ("a.proto", "a", 1)
        ),
    }
    with serving(lambda a: by_path(answers)(plain(a))) as server, registry(server.url) as reader:
        with pytest.raises(InvalidSchemaError):
            reader.by_id(7)


def plain(asked: Asked) -> Asked:
    """As a server takes it that knows no formats."""
    path = asked.path.replace("?format=serialized", "").replace("&format=serialized", "")
    return Asked(asked.method, path, asked.headers, asked.body)


@pytest.mark.parametrize("reply", [no(404, 40401), no(404, 40402), no(422, 42202)])
def test_a_reference_to_nothing_is_the_fault_of_the_schema(reply: Says) -> None:
    answers = {**DIAMOND, "GET /subjects/base/versions/2?deleted=true": reply}
    with serving(lambda a: by_path(answers)(plain(a))) as server, registry(server.url) as reader:
        with pytest.raises(InvalidSchemaError):
            reader.by_id(7)


def test_a_reference_that_cannot_be_fetched_is_nobodys_fault() -> None:
    answers = {**DIAMOND, "GET /subjects/base/versions/2?deleted=true": Says(500)}
    with serving(by_path(answers)) as server, registry(server.url) as reader:
        with pytest.raises(RegistryUnavailableError):
            reader.by_id(7)


def test_the_newest_version_can_be_referenced() -> None:
    text = PROTO3 + 'import "b.proto"; message T { B b = 1; }'
    answers = {
        "GET /schemas/ids/7": protobuf(text, ("b.proto", "base", -1)),
        "GET /subjects/base/versions/latest?deleted=true": protobuf(PROTO3 + "message B {}"),
        f"{VERSIONS}?deleted=true": [],
    }
    with serving(by_path(answers)) as server, registry(server.url) as reader:
        assert reader.by_id(7).message == "T"


def serialized(text: str, **imports: str) -> str:
    named = {f"{name}.proto": content for name, content in imports.items()}
    files = FileDescriptorSet.FromString(compile_proto(text, imports=named).body).file
    return base64.b64encode(files[-1].SerializeToString()).decode()


def test_a_descriptor_in_place_of_a_text() -> None:
    answers = chess(**{"GET /schemas/ids/7": protobuf(serialized(CHESS))})
    with serving(by_path(answers)) as server, registry(server.url) as reader:
        assert reader.by_id(7).messages == ("game.Chess", "game.Move")
        assert len(server.asked) == 2


def test_a_text_that_does_not_compile_is_asked_for_in_the_form_the_registry_has() -> None:
    top, base = PROTO3 + 'import "b.proto"; message T { B b = 1; }', PROTO3 + "message B {}"
    reference = ("b.proto", "base", 1)
    path = "GET /subjects/base/versions/1?deleted=true"
    answers = {
        "GET /schemas/ids/7": protobuf(top, reference),
        "GET /schemas/ids/7?format=serialized": protobuf(serialized(top, b=base), reference),
        path: protobuf("message B { // printed badly"),
        f"{path}&format=serialized": protobuf(serialized(base)),
        f"{VERSIONS}?deleted=true": [],
    }
    with serving(by_path(answers)) as server, registry(server.url) as reader:
        assert reader.by_id(7).message == "T"
        answers[f"{path}&format=serialized"] = protobuf("")
    with serving(by_path(answers)) as server, registry(server.url) as reader:
        with pytest.raises(InvalidSchemaError):
            reader.by_id(7)


def test_a_schema_that_never_compiles_stays_its_own_problem() -> None:
    answers = chess(**{"GET /schemas/ids/7": protobuf("message {")})
    with serving(lambda a: by_path(answers)(plain(a))) as server, registry(server.url) as reader:
        with pytest.raises(InvalidSchemaError):
            reader.by_id(7)


def test_types_of_schemas() -> None:
    assert SchemaShape(schema='"string"').format is Format.AVRO
    assert SchemaShape(schema="{}", schemaType="JSON").format is Format.JSON
    assert SchemaShape(schema="<xs/>", schemaType="XSD").format is None
    answers = chess(**{"GET /schemas/ids/7": {"schema": "<xs/>", "schemaType": "XSD"}})
    with serving(by_path(answers)) as server, registry(server.url) as reader:
        with pytest.raises(InvalidSchemaError):
            reader.by_id(7)


def test_a_schema_without_a_type_is_avro() -> None:
    text = '{"type": "record", "name": "Chess", "fields": [{"name": "player", "type": "string"}]}'
    answers = chess(**{"GET /schemas/ids/7": {"schema": text}})
    with serving(by_path(answers)) as server, registry(server.url) as reader:
        assert reader.by_id(7).format is Format.AVRO


def with_guid(ids: Any) -> dict[str, Any]:
    path = f"GET /schemas/guids/{GUID}"
    return chess(**{path: protobuf(CHESS, guid=str(GUID)), f"{path}/ids": ids})


@pytest.mark.parametrize(
    "ids",
    [[{"context": ".", "id": 7}], [{"context": ".other", "id": 1}, {"context": ".", "id": 7}]],
)
def test_a_schema_by_guid(ids: list[Any]) -> None:
    with serving(by_path(with_guid(ids))) as server, registry(server.url) as reader:
        assert reader.by_guid(GUID) == reader.by_id(7)


@pytest.mark.parametrize("ids", [[], [{"context": ".other", "id": 7}], no(404, 40403)])
def test_an_id_of_another_context_is_not_taken_for_ours(ids: Any) -> None:
    with serving(by_path(with_guid(ids))) as server, registry(server.url) as reader:
        with pytest.raises(SchemaNotFoundError):
            reader.by_guid(GUID)


def test_a_guid_that_is_not_known() -> None:
    with serving(lambda _: no(404, 40403)) as server, registry(server.url) as reader:
        with pytest.raises(SchemaNotFoundError):
            reader.by_guid(GUID)


@pytest.mark.parametrize("reply", [no(404, 404), Says(404, b""), Says(405, b""), Says(501, b"")])
def test_a_registry_without_guids_is_told_from_no_registry(reply: Says) -> None:
    def answer(asked: Asked) -> Says:
        return says(["PROTOBUF"]) if asked.path == "/schemas/types" else reply

    with serving(answer) as server, registry(server.url) as reader:
        with pytest.raises(SchemaNotFoundError):
            reader.by_guid(GUID)
    with serving(lambda _: reply) as server, registry(server.url) as reader:
        with pytest.raises(ConfigError):
            reader.by_guid(GUID)


@pytest.mark.parametrize(
    ("subject", "segment"),
    [
        ("a/b", "a%2Fb"),
        ("../../config", "..%2F..%2Fconfig"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("a?deleted=true#x", "a%3Fdeleted%3Dtrue%23x"),
        ("a b%2F", "a%20b%252F"),
        (":.context:a", "%3A.context%3Aa"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("a\r\nX-Evil: 1", "a%0D%0AX-Evil%3A%201"),
        ("\x00", "%00"),
        ("\ud800", "%ED%A0%80"),
        ("http://other.test/", "http%3A%2F%2Fother.test%2F"),
    ],
)
def test_a_name_is_one_segment_whatever_it_is(subject: str, segment: str) -> None:
    with serving(lambda _: says([1])) as server, registry(server.url) as reader:
        assert reader.versions(subject) == (1,)
        assert server.paths == [f"GET /subjects/{segment}/versions"]


def test_names_that_cannot_be_asked_about_do_not_exist() -> None:
    with serving(lambda _: says([1])) as server, registry(server.url) as reader:
        for subject in ("", "x" * 10_000, "é" * 3_000):
            assert reader.versions(subject) == ()
            with pytest.raises(SchemaNotFoundError):
                reader.latest(subject)
            with pytest.raises(InvalidSchemaError):
                reader.register(subject, CHESS)
        assert server.asked == []


@pytest.mark.parametrize("status", [400, 403, 404, 414])
def test_a_strange_name_that_is_stopped_on_the_way_does_not_exist(status: int) -> None:
    def answer(asked: Asked) -> Says:
        strange = "%2F" in asked.path or "innocent" in asked.path
        return Says(status, b"<html>stopped</html>") if strange else says([])

    with serving(answer) as server, registry(server.url, attempts=1) as reader:
        reader.subjects()
        assert reader.versions("a/b") == ()
        with pytest.raises(SchemaNotFoundError):
            reader.latest("../etc/passwd")
        # a name that nobody can object to: something else is wrong, and no record pays for it
        with pytest.raises(RegistryError) as caught:
            reader.versions("innocent")
        assert not isinstance(caught.value, SchemaNotFoundError)
        assert caught.value.code in (ErrorCode.REGISTRY_AUTH, ErrorCode.REGISTRY_GARBAGE)


def test_who_asks_is_said() -> None:
    with serving(lambda _: says([])) as server:
        with registry(server.url, username="me", password="pä:ss") as reader:
            reader.subjects()
        with registry(server.url, token="abc.def\n") as reader:
            reader.subjects()
        with registry(server.url) as reader:
            reader.subjects()
    said = [asked.headers.get("authorization", "") for asked in server.asked]
    assert base64.b64decode(said[0].removeprefix("Basic ")).decode() == "me:pä:ss"
    assert said[1:] == ["Bearer abc.def", ""]
    headers = server.asked[0].headers
    assert headers["accept"].startswith("application/vnd.schemaregistry.v1+json")
    assert headers["user-agent"] == "distributary"
