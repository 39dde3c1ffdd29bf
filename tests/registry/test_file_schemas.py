from __future__ import annotations

import hashlib
import json
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from distributary.errors import InvalidSchemaError, RegistryUnavailableError, SchemaNotFoundError
from distributary.model.record import Format, SubjectVersion
from distributary.registry.base import SchemaRegistry
from distributary.registry.record_schemas import FileSchemas, guid_of, keep_schema


def text(name: str, *fields: str) -> bytes:
    listed = [{"name": field, "type": "string"} for field in fields]
    return json.dumps({"type": "record", "name": name, "fields": listed}).encode()


def kept(folder: Path, schema: bytes) -> UUID:
    keep_schema(folder, schema)
    return guid_of(schema)


def test_a_guid_is_half_a_digest_of_the_text() -> None:
    assert guid_of(b"x").bytes == hashlib.sha256(b"x").digest()[:16]


def test_a_schema_is_found_by_guid_and_then_by_id(tmp_path: Path) -> None:
    registry: SchemaRegistry = FileSchemas(tmp_path)
    schema = text("orders", "a")
    found = registry.by_guid(kept(tmp_path, schema))
    assert (found.id, found.format, found.message) == (1, Format.AVRO, "orders")
    assert json.loads(found.body) == json.loads(schema)
    assert found.subjects == (SubjectVersion("orders", 1),)
    assert found.label() == "orders v1"
    assert registry.by_id(1) == registry.by_guid(guid_of(schema)) == found


def test_ids_are_the_same_for_ever(tmp_path: Path) -> None:
    guids = [kept(tmp_path, text("orders", *"abc"[:n])) for n in (1, 2, 3)]
    first = [FileSchemas(tmp_path).by_guid(guid).id for guid in guids[:2]]
    again = FileSchemas(tmp_path)
    assert [again.by_guid(guid).id for guid in reversed(guids)] == [3, 2, 1]
    assert first == [1, 2]
    assert [again.by_id(n).id for n in (1, 2, 3)] == [1, 2, 3]


def test_two_processes_do_not_give_one_id_twice(tmp_path: Path) -> None:
    one, other = FileSchemas(tmp_path), FileSchemas(tmp_path)
    guids = [kept(tmp_path, text("t", *"abcd"[:n])) for n in range(1, 5)]
    one.by_guid(guids[0])
    other.by_guid(guids[1])
    one.by_guid(guids[2])
    other.by_guid(guids[3])
    for registry in (one, other):
        found = [registry.by_guid(guid) for guid in guids]
        assert [schema.id for schema in found] == [1, 2, 3, 4]
        assert [schema.label() for schema in found] == ["t v1", "t v2", "t v3", "t v4"]


def test_subjects_are_the_names_of_records(tmp_path: Path) -> None:
    registry = FileSchemas(tmp_path)
    assert (registry.subjects(), registry.versions("orders")) == ((), ())
    for schema in (text("orders", "a"), text("users", "a"), text("orders", "a", "b")):
        registry.by_guid(kept(tmp_path, schema))
    assert registry.subjects() == ("orders", "users")
    assert registry.versions("orders") == (1, 2)
    assert registry.latest("orders").id == registry.version("orders", 2).id == 3
    assert registry.version("orders", 1).id == 1
    for call in (lambda: registry.latest("none"), lambda: registry.version("users", 2)):
        with pytest.raises(SchemaNotFoundError):
            call()


def test_what_nobody_has_brought(tmp_path: Path) -> None:
    registry = FileSchemas(tmp_path / "none")
    with pytest.raises(SchemaNotFoundError):
        registry.by_guid(uuid4())
    with pytest.raises(SchemaNotFoundError):
        registry.by_id(1)


def test_a_schema_that_does_not_compile_gets_no_id(tmp_path: Path) -> None:
    registry = FileSchemas(tmp_path)
    with pytest.raises(InvalidSchemaError):
        registry.by_guid(kept(tmp_path, b'"no such type"'))
    assert registry.by_guid(kept(tmp_path, text("orders", "a"))).id == 1


@pytest.mark.parametrize("damage", ["text", "bytes", "id"])
def test_damage_is_nobodys_records_fault(tmp_path: Path, damage: str) -> None:
    schema = text("orders", "a")
    guid = kept(tmp_path, schema)
    FileSchemas(tmp_path).by_guid(guid)
    match damage:
        case "text":
            (tmp_path / f"{guid.hex}.avsc").write_bytes(text("orders", "b"))
        case "bytes":
            guid = guid_of(b"\xff")
            (tmp_path / f"{guid.hex}.avsc").write_bytes(b"\xff")
        case "id":
            (tmp_path / "ids" / "00000001.json").write_text("{}")
    with pytest.raises(RegistryUnavailableError):
        FileSchemas(tmp_path).by_guid(guid)


def test_keeping_a_schema_twice_is_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "schemas"
    keep_schema(folder, b"a")
    keep_schema(folder, b"a")
    assert [path.read_bytes() for path in folder.iterdir()] == [b"a"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RegistryUnavailableError):
        keep_schema(tmp_path / "taken", b"a")
