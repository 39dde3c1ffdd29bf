"""The formats of change events: one entry for each, with all that the rest of the program asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distributary.config.cdc import CARRIERS, Carrier
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
"""The formats of change events by the value of `cdc.format`."""


def decoded_together(settings: ChangeSettings | None) -> bool:
    """Return whether all changes of a batch are decoded together; False for other records."""
    return settings is not None and CHANGE_FORMATS[settings.format].decoded_together


def formats_in(carrier: Carrier) -> Iterable[ChangeFormat]:
    """Yield the formats whose events may come in files, or in messages."""
    return (entry for name, entry in CHANGE_FORMATS.items() if carrier in CARRIERS[name])


def recognized(records: Sequence[Sampled], *, carrier: Carrier) -> Recognized | None:
    """Return what sampled records are; None where they are of no format of change events."""
    matches = (entry.recognize(records) for entry in formats_in(carrier))
    return next((match for match in matches if match is not None), None)
