"""The same client against a real registry."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from distributary.config.registry import RegistryConfig
from distributary.errors import (
    ConfigError,
    ErrorCode,
    IncompatibleSchemaError,
    InvalidSchemaError,
    RegistryError,
    SchemaNotFoundError,
)
from distributary.model.record import Format, SubjectVersion
from distributary.registry.cached_registry import CachedRegistry
from distributary.registry.compatibility.levels import Level
from distributary.registry.compile.protobuf_compiler import compile_proto
from distributary.registry.http.http_registry import HttpRegistry
from tests.services.shared import unique

if TYPE_CHECKING:
    from distributary_lab.services.services import Services

pytestmark = pytest.mark.services
PROTO3 = 'syntax = "proto3";'


@pytest.fixture
def registry(services: Services) -> Iterator[HttpRegistry]:
    with HttpRegistry(RegistryConfig(url=services.registry)) as opened:
        yield opened


def chess(fields: str) -> str:
    """A schema that no other test has: equal texts share an id across subjects."""
    return f"{PROTO3} package {unique('p').replace('-', '_')}; message Chess {{ {fields} }}"


def test_a_subject_that_evolves(registry: HttpRegistry) -> None:
    subject = unique("chess")
    registry.set_compatibility(subject, Level.FULL)
    first_text = chess("string player = 1;")
    second_text = first_text.replace("= 1;", "= 1; int32 rating = 2;")
    first = registry.register(subject, first_text)
    second = registry.register(subject, second_text)
    assert first != second
    assert registry.register(subject, first_text) == first
    assert registry.versions(subject) == (1, 2)
    assert registry.by_id(first).subjects == (SubjectVersion(subject, 1),)
    assert registry.latest(subject) == registry.version(subject, 2) == registry.by_id(second)
    assert registry.text(second) == second_text
    assert registry.by_id(second).message.endswith(".Chess")
    assert subject in registry.subjects()


def test_what_is_not_there(registry: HttpRegistry) -> None:
    nowhere = unique("nowhere")
    assert registry.versions(nowhere) == ()
    with pytest.raises(SchemaNotFoundError):
        registry.latest(nowhere)
    for schema_id in (2**31 - 1, 2**32 - 1):
        with pytest.raises(SchemaNotFoundError):
            registry.by_id(schema_id)
    with pytest.raises(SchemaNotFoundError):
        registry.delete_subject(nowhere)
    # this server has no GUIDs: a record that names one names nothing here
    with pytest.raises(SchemaNotFoundError):
        registry.by_guid(uuid4())


def test_a_diamond_of_references(registry: HttpRegistry) -> None:
    base, left, right, top = (unique(name) for name in ("base", "left", "right", "top"))
    package = f"{PROTO3} package {unique('p').replace('-', '_')};"
    registry.register(base, f"{package} message Base {{ string name = 1; }}")
    refers = [{"name": "base.proto", "subject": base, "version": 1}]
    for subject, message in ((left, "Left"), (right, "Right")):
        text = f'{package} import "base.proto"; message {message} {{ Base base = 1; }}'
        registry.register(subject, text, references=refers)
    text = f'{package} import "left.proto"; import "right.proto"; message Top {{ Left l = 1; }}'
    both = [
        {"name": "left.proto", "subject": left, "version": 1},
        {"name": "right.proto", "subject": right, "version": 1},
    ]
    found = registry.by_id(registry.register(top, text, references=both))
    files = [file.name for file in FileDescriptorSet.FromString(found.body).file]
    assert files[0] == "base.proto" and len(files) == 4
    assert found.message.endswith(".Top")
    with pytest.raises(RegistryError) as caught:
        registry.delete_subject(base)
    assert caught.value.code is ErrorCode.REGISTRY_REFUSED
    with pytest.raises(InvalidSchemaError):
        registry.register(unique("lost"), text, references=[{**both[0], "subject": unique("no")}])


def test_levels_hold_before_and_after_the_first_version(registry: HttpRegistry) -> None:
    subject, text = unique("chess"), chess("string player = 1;")
    registry.set_compatibility(subject, "FULL")
    registry.register(subject, text)
    assert registry.compatibility(subject) is Level.FULL
    changed = text.replace("string player", "int32 player")
    assert registry.check(subject, text.replace("= 1;", "= 1; bool won = 2;")) == []
    assert registry.check(subject, changed) != []
    with pytest.raises(IncompatibleSchemaError) as caught:
        registry.register(subject, changed)
    assert caught.value.evidence
    registry.set_compatibility(subject, Level.NONE)
    assert registry.check(subject, changed) == []
    assert registry.versions(subject) == (1,)
    registry.register(subject, changed)
    assert registry.versions(subject) == (1, 2)
    registry.set_compatibility(subject, None)
    assert registry.compatibility(subject) is registry.compatibility()


def test_a_first_version_contradicts_nothing(registry: HttpRegistry) -> None:
    subject = unique("chess")
    assert registry.check(subject, chess("")) == []
    assert registry.compatibility(subject) is registry.compatibility()
    registry.set_compatibility(subject, None)


def test_a_text_that_is_no_schema(registry: HttpRegistry) -> None:
    with pytest.raises(InvalidSchemaError):
        registry.register(unique("bad"), "message {")


def test_one_schema_in_two_subjects(registry: HttpRegistry) -> None:
    one, two, text = unique("a"), unique("b"), chess("string player = 1;")
    schema_id = registry.register(two, text)
    assert registry.register(one, text) == schema_id
    places = (SubjectVersion(one, 1), SubjectVersion(two, 1))
    assert registry.by_id(schema_id).subjects == places
    registry.delete_subject(one)
    # what still stands comes first, what was deleted is not forgotten
    assert registry.by_id(schema_id).subjects == places[::-1]


def test_what_is_deleted_can_still_be_read_until_it_is_gone_for_ever(
    registry: HttpRegistry, tmp_path: Path
) -> None:
    subject, text = unique("chess"), chess("string player = 1;")
    schema_id = registry.register(subject, text)
    whole = registry.by_id(schema_id)
    cached = CachedRegistry(registry, folder=tmp_path)
    cached.latest(subject)
    assert registry.delete_subject(subject) == (1,)
    assert registry.by_id(schema_id) == whole
    assert registry.versions(subject) == ()
    assert subject not in registry.subjects()
    with pytest.raises(SchemaNotFoundError):
        registry.latest(subject)
    with pytest.raises(SchemaNotFoundError):
        registry.delete_subject(subject)
    assert registry.delete_subject(subject, permanent=True) == (1,)
    with pytest.raises(SchemaNotFoundError):
        registry.by_id(schema_id)
    with pytest.raises(SchemaNotFoundError):
        registry.delete_subject(subject, permanent=True)
    assert CachedRegistry(registry, folder=tmp_path).by_id(schema_id) == whole


def test_a_permanent_deletion_at_once(registry: HttpRegistry) -> None:
    subject = unique("chess")
    schema_id = registry.register(subject, chess(""))
    assert registry.delete_subject(subject, permanent=True) == (1,)
    with pytest.raises(SchemaNotFoundError):
        registry.by_id(schema_id)


@pytest.mark.parametrize("name", ["a/b", "..", "größe ?x#%2F", "Chess", ":.ctx:x", "<b>", "a\\b"])
def test_any_name_will_do(registry: HttpRegistry, name: str) -> None:
    subject = f"{unique('odd')}{name}"
    schema_id = registry.register(subject, chess(""))
    assert registry.versions(subject) == (1,)
    assert registry.latest(subject).id == schema_id
    assert registry.by_id(schema_id).version_in(subject) == 1
    assert subject in registry.subjects()
    assert registry.delete_subject(subject, permanent=True) == (1,)


def test_names_of_nothing_but_dots(registry: HttpRegistry) -> None:
    for subject in (".", ".."):
        assert registry.versions(subject) == ()


def test_a_descriptor_in_place_of_a_text(registry: HttpRegistry) -> None:
    text = chess("string player = 1;")
    file = FileDescriptorSet.FromString(compile_proto(text).body).file[-1]
    serialized = base64.b64encode(file.SerializeToString()).decode()
    schema_id = registry.register(unique("chess"), serialized)
    assert registry.by_id(schema_id).message == registry.by_id(schema_id).messages[0]
    assert registry.by_id(schema_id).message.endswith(".Chess")


def test_avro_says_its_format(registry: HttpRegistry) -> None:
    name = unique("R").replace("-", "_")
    text = f'{{"type": "record", "name": "{name}", "fields": [{{"name": "a", "type": "int"}}]}}'
    schema_id = registry.register(unique("avro"), text, format=Format.AVRO)
    assert registry.by_id(schema_id).format is Format.AVRO


def test_names_of_a_context(services: Services, registry: HttpRegistry) -> None:
    # this server takes a context for a part of the name, and counts ids across all of them
    subject, text = unique("chess"), chess("string player = 1;")
    with HttpRegistry(RegistryConfig(url=services.registry, context=".team")) as team:
        schema_id = team.register(subject, text)
        assert team.by_id(schema_id).subjects == (SubjectVersion(subject, 1),)
        assert team.latest(subject) == team.by_id(schema_id)
        assert subject in team.subjects() and subject not in registry.subjects()
        assert f":.team:{subject}" in registry.subjects()
        assert registry.latest(f":.team:{subject}").id == schema_id
        assert registry.versions(subject) == ()
        with pytest.raises(SchemaNotFoundError):
            registry.latest(subject)
        assert team.contexts() == (".",)
        team.set_compatibility(subject, Level.FULL)
        assert team.compatibility(subject) is Level.FULL
        assert team.delete_subject(subject, permanent=True) == (1,)


def test_listings_of_a_server_that_knows_no_pages(registry: HttpRegistry) -> None:
    subject = unique("chess")
    for number in range(3):
        registry.register(subject, chess(f"string p{number} = 1;"))
    assert registry.versions(subject) == (1, 2, 3)
    found = registry.subjects()
    assert len(found) == len(set(found)) and subject in found
    assert list(registry.schemas()) == []


def test_the_wrong_path_on_the_right_server(services: Services) -> None:
    root = services.registry.split("/apis/")[0]
    for url in (root, f"{root}/apis/registry/v3", f"{root}/ui"):
        with HttpRegistry(RegistryConfig(url=url)) as stranger, pytest.raises(ConfigError):
            stranger.by_id(1)
