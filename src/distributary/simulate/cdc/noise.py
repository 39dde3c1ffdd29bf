"""Files without events that lie between the others, as they do in real buckets."""

from __future__ import annotations

from collections.abc import Sequence

from distributary.simulate.cdc.chance import Dice
from distributary.simulate.cdc.drafts import Draft, Drafts
from distributary.simulate.cdc.encoder import FileEncoder

_SHARE = 0.03


def noise(
    drafts: Sequence[Draft], names: Drafts, *, encoder: FileEncoder, dice: Dice
) -> dict[str, bytes]:
    """Contents by path: no bytes, no events, a schema, a folder's marker, a leftover."""
    made: dict[str, bytes] = {}
    for draft in dice.some(drafts, _SHARE):
        schema = encoder.schema(draft.shape)
        nothing = names.new_name(draft.shape, draft.method, schema_key=schema.key)
        without = names.new_name(draft.shape, draft.method, schema_key=schema.key)
        empty = encoder.file((), draft.shape, name=without)
        made |= {
            f"{draft.folder}/{nothing}{encoder.suffix}": b"",
            f"{draft.folder}/{without}{encoder.suffix}": empty,
            f"{draft.folder}/{schema.key}.avsc": schema.text.encode(),
            f"{draft.folder}_$folder$": b"",
            # what a writer leaves behind that was killed
            f"{draft.folder}/.{without}{encoder.suffix}.tmp": empty[: len(empty) // 2],
        }
    return made
