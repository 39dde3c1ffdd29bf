"""The table of change formats: complete, and asked by the rest of the program."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import distributary
from distributary.config.cdc import Cdc
from distributary.decode.change.change_formats import CHANGE_FORMATS, formats_from

SOURCE = Path(distributary.__file__).parent
OWN = ("decode/change/",)
"""Where a format may be named: in its entry."""


def test_settings_and_entries_are_the_same_formats() -> None:
    choices = get_args(Cdc.model_fields["format"].annotation)
    assert set(choices) == CHANGE_FORMATS.keys()
    assert all(entry.name == name for name, entry in CHANGE_FORMATS.items())


def test_formats_are_chosen_by_their_source() -> None:
    from_files = {entry.name for entry in formats_from("files")}
    assert "datastream" in from_files and "debezium" not in from_files


def test_no_module_but_an_entry_asks_which_format_it_is() -> None:
    asking = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if any(f'format == "{name}"' in path.read_text() for name in CHANGE_FORMATS)
    ]
    assert [path for path in asking if not path.startswith(OWN)] == []
