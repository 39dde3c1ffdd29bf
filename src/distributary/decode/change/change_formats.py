"""The formats of change events: one entry for each, with all that the rest of the program asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distributary.config.sources.source_types import types_bringing
from distributary.decode.change.base import ChangeFormat, Recognized, Sampled
from distributary.decode.change.canal.format import Canal
from distributary.decode.change.datastream.format import Datastream
from distributary.decode.change.debezium.format import Debezium
from distributary.decode.change.dms.format import Dms
from distributary.decode.change.maxwell.format import Maxwell
from distributary.model.change import ChangeSettings

CHANGE_FORMATS: Mapping[str, ChangeFormat] = {
    entry.name: entry for entry in (Datastream(), Debezium(), Maxwell(), Canal(), Dms())
}
"""By the value of `cdc.format`."""


def decoded_together(settings: ChangeSettings | None) -> bool:
    """Return whether all changes of a batch are decoded together; False for other records."""
    return settings is not None and CHANGE_FORMATS[settings.format].decoded_together


def formats_from(source: str) -> Iterable[ChangeFormat]:
    """Yield the formats that may come from a source of this type."""
    return (entry for name, entry in CHANGE_FORMATS.items() if source in types_bringing(name))


def recognized(records: Sequence[Sampled], *, files: bool) -> Recognized | None:
    """Return what sampled records are; None where they are of no format of change events."""
    entries = formats_from("files" if files else "kafka")
    matches = (entry.recognize(records) for entry in entries)
    return next((match for match in matches if match is not None), None)
