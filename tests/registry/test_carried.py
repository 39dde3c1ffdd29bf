"""Schemas that came with records, or were inferred from them: known after a restart too."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.errors import SchemaNotFoundError
from distributary.registry.record_schemas import (
    FIRST_ID,
    CarriedSchemas,
    InferredSchemas,
    guid_of,
)

OLD, NEW = '{"type":"struct","fields":[]}', '{"type":"struct","fields":[],"name":"x"}'
CLAIM = '["","shop","a/../b"]'


@pytest.mark.parametrize("trial", [False, True])
def test_the_newest_schema_of_a_table(tmp_path: Path, trial: bool) -> None:
    known = CarriedSchemas(tmp_path / "carried", trial=trial)
    with pytest.raises(SchemaNotFoundError):
        known.newest(CLAIM)
    for text in (OLD, NEW):
        known.keep(text)
        known.note(CLAIM, guid_of(text.encode()))
        assert known.newest(CLAIM).body == text.encode()
    again = CarriedSchemas(tmp_path / "carried")
    if trial:
        assert not (tmp_path / "carried").exists()
        with pytest.raises(SchemaNotFoundError):
            again.newest(CLAIM)
    else:
        assert again.newest(CLAIM).body == NEW.encode()


@pytest.mark.parametrize("trial", [False, True])
def test_what_records_looked_like(tmp_path: Path, trial: bool) -> None:
    known = InferredSchemas(tmp_path / "inferred", trial=trial)
    first = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "null"}}}
    second = {"type": "object", "properties": {"a": {"type": "string"}}}
    with pytest.raises(SchemaNotFoundError):
        known.newest(CLAIM)
    told = []
    for document in (first, second, first):
        known.add({CLAIM: document})
        told.append(known.newest(CLAIM))
        assert known.document(CLAIM) == document
        assert list(known.document(CLAIM) or ()) == sorted(document)
    known.add({"other": second})
    assert told[0].id == told[2].id != told[1].id
    versions = (1, 2, 1) if trial else (1, 2, 3)
    assert [each.label() for each in told] == [f"{CLAIM} v{number}" for number in versions]
    assert all(each.id > FIRST_ID for each in told)
    assert len({known.newest("other").id, *(each.id for each in told)}) == 2 + trial
    again = InferredSchemas(tmp_path / "inferred")
    assert again.claims() == (() if trial else (CLAIM, "other"))
    assert (tmp_path / "inferred").exists() is not trial
