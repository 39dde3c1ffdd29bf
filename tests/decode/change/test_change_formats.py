"""The table of change formats: complete, and asked by the rest of the program."""

from __future__ import annotations

from typing import get_args

from distributary.config.cdc import Cdc
from distributary.decode.change.change_formats import CHANGE_FORMATS, formats_in


def test_settings_and_entries_are_the_same_formats() -> None:
    choices = get_args(Cdc.model_fields["format"].annotation)
    assert set(choices) == CHANGE_FORMATS.keys()
    assert all(entry.name == name for name, entry in CHANGE_FORMATS.items())


def test_formats_are_chosen_by_the_way_their_events_come() -> None:
    in_files = {entry.name for entry in formats_in("files")}
    in_messages = {entry.name for entry in formats_in("messages")}
    assert "datastream" in in_files - in_messages
    assert "debezium" in in_messages - in_files
