"""Oracle: SCN; redo log and block of `rs_id`; offset of `rs_id` and SSN."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from distributary.decode.change.order.place import (
    Place,
    Triple,
    read_hexes,
    read_integers,
    read_texts,
)


def oracle_place(metadata: Mapping[str, pa.Array], count: int) -> Place:
    """Read the places of Oracle's changes, by Datastream or Debezium."""
    scn, bad_scn = read_integers(metadata.get("scn"), count)
    ssn, bad_ssn = read_integers(metadata.get("ssn"), count)
    redo = read_texts(metadata.get("rs_id"), count, _rs_id)
    bad = redo.bad | bad_scn | bad_ssn | (ssn >= 2**32)
    return Place(scn, redo.b, redo.c | np.where(bad, 0, ssn), bad)


def _rs_id(text: str) -> Triple | None:
    parts = read_hexes(text.removeprefix("0x").split("."), 3)
    if not parts or parts[1] >= 2**32 or parts[2] >= 2**31:
        return None
    # beside the offset there is room for the SSN, which counts the rows of one redo record
    return (0, (parts[0] << 32) | parts[1], parts[2] << 32)
