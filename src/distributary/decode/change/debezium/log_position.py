"""The position of a change in the log of its database, as Debezium's connectors say it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from distributary.decode.change.order import lsn, mysql
from distributary.decode.change.order.oracle import oracle_place
from distributary.decode.change.order.place import Place, nowhere, read_integers


def debezium_places(source: Mapping[str, pa.Array], count: int, *, ordered: bool) -> Place:
    """Read the positions of Debezium's events; none where `ordered` is not the case."""
    if not ordered:
        return nowhere(count)
    if "pos" in source and "file" in source:
        return mysql.debezium_place(source, count)
    if "change_lsn" in source:
        return lsn.debezium_sqlserver_place(source, count)
    if "scn" in source:
        return oracle_place(source, count)
    if "lsn" in source:
        return lsn.debezium_postgresql_place(source, count)
    if "ord" in source:
        milliseconds, bad = read_integers(source.get("ts_ms"), count)
        number, worse = read_integers(source["ord"], count)
        return Place(milliseconds // 1_000, number, np.zeros(count, np.int64), bad | worse)
    return nowhere(count)
