"""Schemas that came with records: the newest of a table is known after a restart too."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.errors import SchemaNotFoundError
from distributary.registry.record_schemas import CarriedSchemas, guid_of

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
