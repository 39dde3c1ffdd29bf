"""What makes an event of Debezium the same event when it comes again.

A connector that is started again sends some events once more: the same change of the source, with
other times of its own. An event is told by its position in the source's log, its key, what happened
and the row, all of them; the position comes first, so that ids go up with the log. That is only
done where each change has a position of its own: elsewhere a row may truly have changed twice in
the same way at one position, and one of these events would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.change.order import Place
from distributary.decode.changes import content_hashes
from distributary.decode.datastream_values import Ints, Mask
from distributary.decode.debezium_events import Events
from distributary.evolve.rest import rest_as_json

_OWN_POSITIONS = (("file", "pos", "row"), ("change_lsn", "event_serial_no"), ("lsn",))
"""MySQL and MariaDB, SQL Server and Db2, PostgreSQL."""
_TOLD = ("name", "server_id", "txId", "gtid", "commit_lsn")
_TIMES = ("ts_ms", "ts_us", "ts_ns")
_HALF = 8
"""Bytes of a digest that are in the id; as many others are the hash."""


def identities(
    events: Events, place: Place, names: Sequence[str], *, keyed: Mask, flat: bool
) -> tuple[pa.StringArray, pa.Int64Array]:
    """The id of each event, empty for those that have none, and a hash of what it says.

    Args:
        events: The events.
        place: Their positions.
        names: The columns of their rows.
        keyed: Which of them have a key.
        flat: They have no envelope: what times they tell may be the connector's own.
    """
    known = keyed & ((place.a != 0) | (place.b != 0) | (place.c != 0))
    kind = _own_positions(events.parts.source)
    if not known.any() or not kind:
        none = pa.repeat(pa.scalar("", pa.string()), len(events))
        return none, content_hashes(events.own_payloads())
    begin = blake2b("\0".join(names).encode("utf-8", "replace"), digest_size=2 * _HALF)
    digests = bytearray()
    for said in _said(events, () if flat else _TIMES).to_pylist():
        digest = begin.copy()
        digest.update(said)
        digests += digest.digest()
    halves = np.frombuffer(bytes(digests), "<i8").reshape(-1, 2)
    hashes = halves[:, 1].copy()
    if not known.all():
        others = np.flatnonzero(~known)
        hashes[others] = content_hashes(events.own_payloads().take(pa.array(others))).to_numpy()
    numbers = (place.a, place.b, place.c) if len(kind) > 1 else (place.a,)
    return _ids(numbers, halves[:, 0], known), pa.array(hashes)


def _ids(numbers: Sequence[Ints], digests: Ints, known: Mask) -> pa.StringArray:
    """Positions as texts that sort as they do, and digests."""
    texts = [pc.utf8_lpad(pa.array(each).cast(pa.string()), 19, "0") for each in numbers]
    words = pa.array(digests.view(np.uint64)).cast(pa.string())
    ids = pc.binary_join_element_wise(*texts, words, "-")
    return ids if known.all() else pc.if_else(pa.array(known), ids, "")


def _own_positions(source: Mapping[str, pa.Array]) -> tuple[str, ...]:
    """What a change's own position is made of; nothing where it may share it with others."""
    kind = next((parts for parts in _OWN_POSITIONS if parts[0] in source), ())
    return kind if all(part in source for part in kind) else ()


def _said(events: Events, times: Sequence[str]) -> pa.BinaryArray:
    """All that an event says about its change, as JSON, and the key of its message."""
    parts = events.parts
    told = [parts.source[name] for name in (*_TOLD, *times) if name in parts.source]
    before = [array for name, array in parts.rest if name == "before"]
    arrays = [pa.array(parts.codes), *told, *before, *parts.row]
    numbered = [str(number) for number in range(len(arrays))]
    texts = rest_as_json(pa.RecordBatch.from_arrays(arrays, numbered), numbered)
    keys = pc.fill_null(events.message("key"), b"")
    return pc.binary_join_element_wise(texts.cast(pa.binary()), keys, b"\0")
