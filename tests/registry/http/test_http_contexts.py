"""Contexts: whoever is asked about one never answers for another."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from pydantic import ValidationError

from distributary.config.registry import RegistryConfig
from distributary.errors import SchemaNotFoundError
from distributary.model.record import SubjectVersion
from distributary.registry.base import context_of, local, named, qualified
from distributary.registry.cached_registry import CachedRegistry
from tests.registry.contexted import Contexted
from tests.registry.loopback import Asked, Says, by_path, no, registry, says, serving

PROTO3 = 'syntax = "proto3";'
CHESS = PROTO3 + "message Chess { string player = 1; }"
CHESS_2 = PROTO3 + "message Chess { string player = 1; int32 rating = 2; }"
GO = PROTO3 + "message Go { int32 stones = 1; }"


def two_teams() -> Contexted:
    """Id 1 is another schema in each of three contexts."""
    server = Contexted()
    server.add("chess-value", CHESS)
    server.add(":.team:chess-value", GO)
    server.add(":.team:chess-value", CHESS_2)
    server.add(":.other:go", CHESS_2)
    return server


def test_an_id_means_what_its_context_says() -> None:
    with serving(two_teams(), paged=True) as server:
        with registry(server.url) as default, registry(server.url, context=".team") as team:
            assert default.by_id(1).message == "Chess"
            assert team.by_id(1).message == "Go"
            assert default.text(1) == CHESS and team.text(1) == GO
            assert default.by_id(1).subjects == (SubjectVersion("chess-value", 1),)
            assert team.by_id(1).subjects == (SubjectVersion("chess-value", 1),)
            with pytest.raises(SchemaNotFoundError):
                default.by_id(2)
            assert team.by_id(2).message == "Chess"
        lookups = [asked for asked in server.asked if asked.path.startswith("/schemas/ids/")]
        assert {a.query.get("subject") for a in lookups} == {None, ":.team:"}


def test_subjects_are_called_by_their_names_within_the_context() -> None:
    with serving(two_teams(), paged=True) as server:
        with registry(server.url, context="team") as team:
            assert team.subjects() == ("chess-value",)
            assert team.versions("chess-value") == (1, 2)
            assert team.latest("chess-value") == team.version("chess-value", 2) == team.by_id(2)
            assert team.latest(":.team:chess-value") == team.by_id(2)
            assert team.versions("go") == () == team.versions("")
            assert team.register("new", PROTO3 + "message New {}") == 3
            assert server.paths[-1] == "POST /subjects/%3A.team%3Anew/versions"
            assert team.contexts() == (".", ".other", ".team")
            assert [(e.subject, e.version, e.id) for e in team.schemas()] == [
                ("chess-value", 1, 1),
                ("chess-value", 2, 2),
                ("new", 1, 3),
            ]


def test_without_a_context_every_name_says_its_own() -> None:
    with serving(two_teams(), paged=True) as server, registry(server.url) as whole:
        assert whole.subjects() == (":.other:go", ":.team:chess-value", "chess-value")
        assert whole.latest(":.team:chess-value").id == 2
        assert whole.latest(":.other:go").message == "Chess"
        messages = [whole.compiled(each).message for each in whole.schemas()]
        assert messages == ["Chess", "Go", "Chess", "Chess"]
        team = whole.within(":.team:")
        assert team.context == ".team" and whole.context == "."
        assert team.text(1) == GO


def test_what_is_found_in_another_context_is_not_here() -> None:
    """A server that looks further must not hand out ids that mean something else here."""
    with serving(two_teams(), paged=True) as server, registry(server.url) as default:
        with pytest.raises(SchemaNotFoundError) as caught:
            default.latest("go")
        assert ":.other:go" in caught.value.evidence


def test_a_guid_has_an_id_in_each_context() -> None:
    guid = UUID(int=7)
    ids = [{"context": ".", "id": 1}, {"context": ":.team:", "id": 2}, {"context": ".o", "id": 3}]

    def script(asked: Asked) -> Says:
        if asked.path.endswith("/ids"):
            return says(ids)
        return says([] if "versions" in asked.path else {"schema": GO, "schemaType": "PROTOBUF"})

    with serving(script) as server:
        for context, found in ((None, 1), (".team", 2), (".o", 3)):
            with registry(server.url, context=context) as reader:
                assert reader.by_guid(guid).id == found
        with registry(server.url, context=".nobody") as reader, pytest.raises(SchemaNotFoundError):
            reader.by_guid(guid)


def test_references_stay_in_their_context() -> None:
    server = two_teams()
    server.add("base", PROTO3 + "message Base { string wrong = 1; }")
    server.add(":.team:base", PROTO3 + "message Base { int64 right = 1; }")
    refers = [{"name": "base.proto", "subject": "base", "version": 1}]
    text = PROTO3 + 'import "base.proto"; message Top { Base base = 1; }'
    top = server.add(":.team:top", text, references=refers)
    with serving(server, paged=True) as opened, registry(opened.url, context=".team") as team:
        assert b"right" in team.by_id(top).body
        assert b"wrong" not in team.by_id(top).body
    with serving(server, paged=True) as opened, registry(opened.url) as whole:
        assert b"right" in whole.latest(":.team:top").body


def test_levels_of_a_context_are_not_those_of_the_registry() -> None:
    script = by_path(
        {
            "GET /config/%3A.team%3A?defaultToGlobal=true": {"compatibilityLevel": "FULL"},
            "GET /config": {"compatibilityLevel": "NONE"},
            "PUT /config/%3A.team%3A": {"compatibility": "FULL"},
        }
    )
    with serving(script) as server, registry(server.url, context=".team") as team:
        assert team.compatibility() == "FULL"
        team.set_compatibility(None, "FULL")
        assert "PUT /config/%3A.team%3A" in server.paths


def test_the_cache_keeps_ids_of_one_context_only(tmp_path: Path) -> None:
    with serving(two_teams(), paged=True) as server:
        with registry(server.url) as inner:
            cached = CachedRegistry(inner, folder=tmp_path)
            # asked for by name, id 2 and 1 of others must not become those of this context
            assert cached.latest(":.team:chess-value").id == 2
            assert cached.latest(":.other:go").id == 1
            assert cached.by_id(1).message == "Chess"
            with pytest.raises(SchemaNotFoundError):
                cached.by_id(2)
            names = {path.name for path in tmp_path.iterdir()}
            assert names == {"00000001.json"}
        with registry(server.url) as inner:
            again = CachedRegistry(inner, folder=tmp_path)
            assert again.by_id(1).subjects == (SubjectVersion("chess-value", 1),)


def test_two_contexts_of_one_server_are_two_places() -> None:
    urls = ["http://a:1/", "http://b:2"]
    plain, team = RegistryConfig(urls=urls), RegistryConfig(urls=urls, context="team")
    assert plain.places == plain.addresses
    assert team.places == ("http://a:1/contexts/.team", "http://b:2/contexts/.team")


@pytest.mark.parametrize("given", ["team", ".team", ":.team:", ":.team"])
def test_a_context_may_be_written_in_any_of_its_forms(given: str) -> None:
    assert RegistryConfig(url="http://a", context=given).context == ".team"


@pytest.mark.parametrize(
    "given",
    [
        *("", ".", ":.:", "..", ":*:", "a:b", ":.a:b", "a/b", "a b", "a?b", "a\r\nX: 1", "a\x00"),
        *("é", ".__GLOBAL", "x" * 300, "%2e", "a#b", "a\\b", "<b>"),
    ],
)
def test_a_context_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ValidationError):
        RegistryConfig(url="http://a", context=given)


def test_a_context_means_nothing_for_a_folder() -> None:
    with pytest.raises(ValidationError):
        RegistryConfig(path="./schemas", context=".team")


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (Says(404), (".",)),
        (no(404, 404), (".",)),
        (says([":.:"]), (".",)),
        (says([]), (".",)),
        (says([".", ".b", ":.a:"]), (".", ".a", ".b")),
    ],
)
def test_contexts_however_a_registry_spells_them(said: Says, known: tuple[str, ...]) -> None:
    def script(asked: Asked) -> Says:
        return said if str(asked) == "GET /contexts" else says(["AVRO"])

    with serving(script) as server, registry(server.url) as reader:
        assert reader.contexts() == known


def test_names_and_contexts() -> None:
    assert qualified("a", ".") == "a" and qualified("a", ".t") == ":.t:a"
    assert qualified(":.u:a", ".t") == ":.u:a"
    assert context_of(":.t:a:b") == ".t" and context_of(":.t") == ".t" and context_of(":a") is None
    assert context_of(":.:a") == "."
    assert local(":.t:a", ".t") == "a" and local(":.t:a", ".") == ":.t:a"
    assert local(":.u:a", ".t") == ":.u:a"
    assert named(":.t:") == ".t" and named("") == "." == named(":.:")
