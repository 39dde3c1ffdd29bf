"""Schemas by GUID in the registries that need no server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from distributary.errors import RegistryUnavailableError, SchemaNotFoundError
from distributary.registry.folder import FileRegistry
from tests.registry.scratch import ScratchRegistry

PROTO3 = 'syntax = "proto3";'
BASE = PROTO3 + "message Base { string a = 1; }"
TOP = PROTO3 + 'import "base.proto"; message Top { Base b = 1; }'
REFERENCE = {"name": "base.proto", "subject": "base", "version": 1}

Open = Callable[[], FileRegistry]


@pytest.fixture
def open_registry(tmp_path: Path) -> Open:
    return lambda: FileRegistry(tmp_path / "schemas", durable=False)


def test_a_schema_is_found_by_its_guid(open_registry: Open) -> None:
    registry = open_registry()
    base = registry.register("base", BASE)
    assert registry.by_guid(registry.guid_of(base)) == registry.by_id(base)
    top = registry.register("top", TOP, references=[REFERENCE])
    assert registry.by_guid(registry.guid_of(top)) == registry.by_id(top)
    assert registry.guid_of(base) != registry.guid_of(top)
    with pytest.raises(SchemaNotFoundError):
        registry.by_guid(uuid4())
    with pytest.raises(SchemaNotFoundError):
        registry.guid_of(99)


def test_another_process_finds_it_too(open_registry: Open) -> None:
    reader = open_registry()
    guid = reader.guid_of(reader.register("base", BASE))
    writer = open_registry()
    assert writer.by_guid(guid).message == "Base"
    new = writer.guid_of(writer.register("top", TOP, references=[REFERENCE]))
    assert reader.by_guid(new).message == "Top"


def test_the_same_content_has_the_same_guid_everywhere(open_registry: Open) -> None:
    here, there = open_registry(), ScratchRegistry()
    there.register("first", PROTO3 + "message First {}")
    one, two = here.register("base", BASE), there.register("base", BASE)
    assert one != two or there.by_id(two).message == "Base"
    assert here.guid_of(one) == there.guid_of(two)
    # the recipe is a promise: producers may have written these bytes
    assert str(here.guid_of(one)) == "8c7b2f70-8383-5f3c-adb0-6f6827975cb7"


def test_a_deleted_schema_keeps_its_guid(open_registry: Open) -> None:
    registry = open_registry()
    guid = registry.guid_of(registry.register("base", BASE))
    registry.delete_subject("base")
    assert registry.by_guid(guid).message == "Base"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnavailableError):
        FileRegistry(tmp_path / "nowhere").by_guid(uuid4())
    (tmp_path / "empty").mkdir()
    with pytest.raises(SchemaNotFoundError):
        FileRegistry(tmp_path / "empty").by_guid(uuid4())
