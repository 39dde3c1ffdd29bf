"""Whole transactions: a batch of change data ends where transactions of the source end.

Debezium writes the end of each transaction to a topic of its own, with the number of events in each
table. After a batch was staged, the driver counts the events of each transaction in the logs. If a
transaction has events that are not in the batch, the batch is staged again and ends before the
transaction, in each partition. The rest is held back: the next batch begins with it. So every
table of a cut, logs as well, has whole transactions.

Events may have ids without any ends: PostgreSQL's transaction numbers, and MySQL's and MariaDB's
GTIDs. With `cdc.transactions.whole: always`, a transaction then ends where a later one begins.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.config.cdc import TransactionsConfig
from distributary.decode.avro.decoder import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.engine.context import RunContext
from distributary.engine.steps.hops import Stages
from distributary.errors import DistributaryError
from distributary.model.record import Partition
from distributary.model.table import Role
from distributary.observe.status.pulse import HeldRecords
from distributary.registry.frames import payloads, split
from distributary.source.base import BatchInput
from distributary.store.base import at

_log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

ENDS = ".transaction"
"""The last part of the name of a connector's topic of transactions."""
_SETTLE_SECONDS = 5.0
"""Events may become visible so much later than the end of their transaction."""
_LAST = np.iinfo(np.int64).max
_COLUMNS = ("_envelope", "_topic", "_partition", "_offset", "_timestamp")
_BLOCK = r'"transaction":(?P<block>\{[^{}]*\})'
_ID = r'"id":"(?P<id>[^"]*)"'
_ORDER = r'"total_order":"?(?P<order>\d+)'
_GTID = r'"(?:__source_|__)?gtid":"(?P<id>[^"]+)"'
_NUMBER = r'"(?:__source_|__)?txId":(?P<id>\d+)'
_COMMIT = r'"(?:__source_|__)?sequence":"\[\\"(?P<order>\d+)\\"'
_LOG_NUMBER = re.compile(r"(\d+):\d+", re.ASCII)
_FLAT_ID = r'"__transaction_id":"(?P<id>[^"]*)"'
_FLAT_ORDER = r'"__transaction_total_order":"?(?P<order>\d+)'


class HeldBack(Exception):
    """A batch that would have no record: all of them are of transactions that have not ended."""

    def __init__(self, held: Held) -> None:
        super().__init__(held.describe())
        self.held = held


@dataclass(frozen=True, slots=True)
class End:
    """The end of a transaction, as a connector has written it."""

    order: int
    """Its rank among the ends of the batch."""
    place: tuple[Partition, int]
    sent_us: int
    events: Mapping[str, int]
    """The number of events by table, as the connector names tables."""


@dataclass(frozen=True, slots=True)
class Held:
    """The part of a batch that is held back."""

    records: int = 0
    transactions: int = 0
    example: str = ""
    """The id of one of the transactions."""
    retry_seconds: float = 0.0
    """After so many seconds, the first of them is no longer held back."""
    since_us: int = 0
    """The time of the oldest of the records."""

    def for_status(self) -> HeldRecords | None:
        """Return the counts as events and the pulse have them; None if nothing is held back."""
        if not self.records:
            return None
        since = datetime.fromtimestamp(self.since_us / 1e6, UTC)
        return HeldRecords(self.records, self.transactions, self.example, since)

    def describe(self) -> str:
        """Format the counts: `12 records of 2 transactions, such as 571`."""
        return (
            f"{self.records:,} records of {self.transactions:,} transactions, such as "
            f"{self.example}"
        )


@dataclass(frozen=True, slots=True)
class WholePart:
    """The part of a batch that has whole transactions."""

    source: BatchInput | None
    """None if the batch would be empty."""
    decided: bool = True
    """False if the batch has grown, so that its transactions must be looked at again."""
    held: Held = field(default_factory=lambda: Held())


@dataclass(slots=True)
class TransactionEvents:
    """The events of a batch that belong to transactions, one element for each."""

    codes: Ints
    """The transaction of each event, as a position in `ids`."""
    lines: Ints
    """The partition of each event, as a position in `partitions`."""
    offsets: Ints
    orders: Ints
    """The number of the event in its transaction; unique negative numbers where it has none."""
    times: Ints
    """The time of the event's message, in microseconds."""
    ids: list[tuple[str, str]]
    """The connector and the id of each transaction."""
    ranks: Ints
    """The order of the transactions, as far as they have no end: by commits or numbers."""
    partitions: list[Partition] = field(default_factory=list)


def whole_part(context: RunContext, source: BatchInput, stages: Stages) -> WholePart:
    """Return the part of a batch that has whole transactions; `source` itself if it has them.

    A batch that would be empty grows, if the source has further records.
    """
    cdc = context.config.cdc
    if cdc is None or cdc.transactions.whole == "never" or source.shorter is None:
        return WholePart(source)
    topics = {r.topic for r in source.ranges} | {_parted(n)[0] for n in source.lag_by_partition}
    connectors = {topic.removesuffix(ENDS) for topic in topics if topic.endswith(ENDS)}
    always = cdc.transactions.whole == "always"
    if not connectors and not always:
        return WholePart(source)
    events = read_events(_log_rows(context, stages), connectors, always=always)
    if events is None:
        return WholePart(source)
    cuts, held = cut_before(
        events,
        read_ends(_messages(context, source)),
        unread={_parted(name) for name, lag in source.lag_by_partition.items() if lag > 0},
        reads=source.reads,
        settings=cdc.transactions,
        cut=context.staging.cut_transactions,
        now_us=time.time_ns() // 1000,
    )
    if not cuts:
        return WholePart(source)
    shorter = source.shorter(cuts)
    if shorter.ranges:
        return WholePart(shorter, held=held)
    if source.records < cdc.transactions.max_records:
        longer = None if source.longer is None else source.longer()
        return WholePart(longer, decided=False, held=held)
    _log.warning(
        "transaction %s is cut: it has more events than a batch of %s records "
        "(cdc.transactions.max_records)",
        held.example,
        f"{source.records:,}",
    )
    # the rest of it is not held back
    context.staging.cut_transactions.update(events.ids)
    return WholePart(source)


def _parted(name: str) -> Partition:
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)


# The events and ends of a batch.


def _log_rows(context: RunContext, stages: Stages) -> pa.Table:
    tables = []
    for name, files in stages.staged.files.items():
        table = context.planner.book.tables[name]
        if table.role is not Role.LOG:
            continue
        for file in files:
            with at(table.path).open(file.path) as opened:
                tables.append(pq.ParquetFile(opened).read(columns=[*_COLUMNS]))
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def read_events(
    rows: pa.Table, connectors: Iterable[str], *, always: bool
) -> TransactionEvents | None:
    """Read the transactions of events from their envelopes; None if no event has one.

    `connectors` are those that write ends. With `always`, the ids of databases count as well.
    """
    if not rows.num_rows:
        return None
    envelopes = rows["_envelope"].combine_chunks()
    blocks = _extracted(envelopes, _BLOCK, "block")
    blocks = pc.coalesce(blocks, _if_flat(envelopes))
    ids = pc.coalesce(_extracted(blocks, _ID, "id"), _extracted(blocks, _FLAT_ID, "id"))
    orders = pc.coalesce(
        _extracted(blocks, _ORDER, "order"), _extracted(blocks, _FLAT_ORDER, "order")
    )
    commits = pa.nulls(len(envelopes), pa.string())
    if always:
        ids = pc.coalesce(
            ids, _extracted(envelopes, _GTID, "id"), _extracted(envelopes, _NUMBER, "id")
        )
        commits = _extracted(envelopes, _COMMIT, "order")
    # the rows of a snapshot are of no transaction
    snapshot = pc.match_substring_regex(envelopes, r'"snapshot":"(?:true|first|last)')
    ids = pc.if_else(pc.fill_null(snapshot, False), None, ids)
    there = pc.is_valid(ids)
    if not pc.any(there).as_py():
        return None
    part = rows.select([*_COLUMNS[1:]]).filter(there)
    known = sorted(connectors, key=len, reverse=True)
    topics = part["_topic"].combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    owners = [next((c for c in known if t.startswith(f"{c}.")), "") for t in names]
    tokens = ids.filter(there).dictionary_encode()
    texts = [_plain(text) for text in tokens.dictionary.to_pylist()]
    codes: dict[tuple[str, str], int] = {}
    pairs = zip(topics.indices.to_pylist(), tokens.indices.to_pylist(), strict=True)
    found = np.array(
        [codes.setdefault((owners[t], texts[i]), len(codes)) for t, i in pairs], np.int64
    )
    partitions: dict[Partition, int] = {}
    places = zip(topics.indices.to_pylist(), part["_partition"].to_pylist(), strict=True)
    lines = np.array(
        [partitions.setdefault((names[t], p), len(partitions)) for t, p in places], np.int64
    )
    order = orders.filter(there).cast(pa.int64())
    missing = -1 - np.arange(len(found))
    numbered = np.where(
        pc.is_valid(order).to_numpy(zero_copy_only=False),
        pc.fill_null(order, 0).to_numpy(zero_copy_only=False),
        missing,
    )
    times = pc.fill_null(part["_timestamp"].cast(pa.int64()), 0).combine_chunks().to_numpy()
    ranks = np.zeros(len(codes), np.int64)
    committed = pc.fill_null(commits.filter(there).cast(pa.int64()), 0)
    np.maximum.at(ranks, found, committed.to_numpy(zero_copy_only=False))
    for (_, text), code in codes.items():
        last = re.search(r"(\d+)$", text)
        if not ranks[code] and last is not None:
            ranks[code] = int(last[1]) % _LAST
    offsets = part["_offset"].combine_chunks().to_numpy()
    return TransactionEvents(found, lines, offsets, numbered, times, [*codes], ranks, [*partitions])


def _extracted(texts: pa.Array, pattern: str, name: str) -> pa.Array:
    found = pc.extract_regex(texts, pattern)
    return found.field(name) if found.null_count == 0 else pc.struct_field(found, [name])


def _if_flat(envelopes: pa.Array) -> pa.Array:
    """Return the envelopes of flattened events, whose fields are not in blocks."""
    return pc.if_else(pc.match_substring(envelopes, '"__transaction_id":'), envelopes, None)


def _plain(text: str) -> str:
    """Return the id of a transaction: PostgreSQL's has a place in the log that differs by event."""
    numbered = _LOG_NUMBER.fullmatch(text)
    return text if numbered is None else numbered[1]


def _messages(
    context: RunContext, source: BatchInput
) -> Iterator[tuple[Partition, int, int | None, Any]]:
    """Yield partition, offset, time and content of the messages about transactions."""
    topics = sorted({r.topic for r in source.ranges if r.topic.endswith(ENDS)})
    if not topics or source.read is None:
        return
    for batch in source.read(topics):
        places = zip(*(batch[n].to_pylist() for n in ("topic", "partition")), strict=True)
        times = batch["timestamp"].cast(pa.int64()).to_pylist()
        values = _contents(context, batch["value"].cast(pa.binary()))
        yield from zip(places, batch["offset"].to_pylist(), times, values, strict=True)


def _contents(context: RunContext, values: pa.BinaryArray) -> list[Any]:
    """Return the content of each message, in JSON or in Avro; None for any other."""
    contents: list[Any] = []
    framed = split(values, None, protobuf=False)
    bodies = payloads(values, framed.payload_start)
    for value, schema_id, body in zip(
        values.to_pylist(), framed.ids.tolist(), bodies.to_pylist(), strict=True
    ):
        found: Any = None
        if value and value[:1] == b"\0":
            with suppress(DistributaryError):
                found = _avro(context, int(schema_id), body)
        elif value:
            with suppress(ValueError, RecursionError):
                found = json.loads(value)
                if isinstance(found, dict) and {"schema", "payload"} <= found.keys():
                    found = found["payload"]
        contents.append(found if isinstance(found, dict) else None)
    return contents


def _avro(context: RunContext, schema_id: int, body: bytes) -> Any:
    schema = context.planner.schema(schema_id)
    decoder = AvroDecoder(schema.body, schema.message, DecodeLimits())
    return next(iter(decoder.decode(pa.array([body], pa.binary())).ok.to_pylist()), None)


def read_ends(
    messages: Iterable[tuple[Partition, int, int | None, Any]],
) -> dict[tuple[str, str], End]:
    """Return the ends of transactions by connector and id."""
    ends: dict[tuple[str, str], End] = {}
    for partition, offset, sent_us, message in messages:
        if not isinstance(message, dict) or message.get("status") != "END":
            continue
        text, counts = message.get("id"), message.get("data_collections")
        if not isinstance(text, str):
            continue
        events: dict[str, int] = {}
        for each in counts if isinstance(counts, list) else ():
            if isinstance(each, dict) and isinstance(each.get("data_collection"), str):
                count = each.get("event_count")
                events[each["data_collection"]] = count if isinstance(count, int) else 0
        connector = partition[0].removesuffix(ENDS)
        ends[connector, _plain(text)] = End(len(ends), (partition, offset), sent_us or 0, events)
    return ends


# The decision.


def cut_before(
    events: TransactionEvents,
    ends: Mapping[tuple[str, str], End],
    *,
    unread: set[Partition],
    reads: Callable[[str], bool],
    settings: TransactionsConfig,
    now_us: int,
    cut: Collection[tuple[str, str]] = (),
) -> tuple[dict[Partition, int], Held]:
    """Return where partitions must end before transactions that are not whole.

    `unread` are the partitions that have records after the batch; `reads` says whether a topic is
    read. Transactions in `cut` have been cut already.
    """
    count = len(events.ids)
    ended = np.array([pair in ends for pair in events.ids], np.bool_)
    stated = np.array([bool(connector) for connector, _ in events.ids], np.bool_)
    rank = np.where(stated, _LAST, events.ranks)
    sent = np.zeros(count, np.int64)
    lacking = np.zeros(count, np.bool_)
    seen = _seen(events)
    for code, pair in enumerate(events.ids):
        if (end := ends.get(pair)) is not None:
            rank[code], sent[code] = end.order, end.sent_us
            lacking[code] = seen[code] < _expected(pair[0], end, reads)
    newest = np.zeros(count, np.int64)
    np.maximum.at(newest, events.codes, events.times)
    wait_us = int(settings.wait.total_seconds() * 1e6)
    ends_unread = {p[0].removesuffix(ENDS) for p in unread if p[0].endswith(ENDS)}
    later = np.array([connector in ends_unread for connector, _ in events.ids], np.bool_)
    passed = _passed(events, rank, stated, unread)
    fresh = now_us - newest < wait_us
    last = np.where(stated, 0, rank).max(initial=0)
    held = np.where(
        stated,
        # a transaction without an end, or with events that are still to come
        (~ended & (later | fresh))
        | (ended & lacking & (~passed | (now_us - sent < _SETTLE_SECONDS * 1e6))),
        ~passed | ((rank == last) & fresh),
    )
    if cut:
        held &= ~np.array([pair in cut for pair in events.ids], np.bool_)
    if not held.any():
        return {}, Held()
    left = np.where(
        ended, _SETTLE_SECONDS - (now_us - sent) / 1e6, (wait_us - now_us + newest) / 1e6
    )
    retry = float(np.maximum(left[held], 0.2).min())
    cuts = _spread(events, ends, held)
    beyond = _beyond(events, cuts)
    records = int(np.count_nonzero(beyond))
    # records without a time count as new
    since_us = int(np.where(events.times > 0, events.times, now_us)[beyond].min(initial=now_us))
    example = events.ids[int(np.flatnonzero(held)[0])][1]
    return cuts, Held(records, int(np.count_nonzero(held)), example, retry, since_us)


def _seen(events: TransactionEvents) -> Ints:
    """Return the number of different events of each transaction."""
    pairs = np.unique(np.stack([events.codes, events.orders], axis=1), axis=0)
    return np.bincount(pairs[:, 0], minlength=len(events.ids)).astype(np.int64)


def _expected(connector: str, end: End, reads: Callable[[str], bool]) -> int:
    """Return the number of events in the topics that are read."""
    return sum(count for table, count in end.events.items() if reads(f"{connector}.{table}"))


def _passed(events: TransactionEvents, rank: Ints, stated: Flags, unread: set[Partition]) -> Flags:
    """Return which transactions lie before the last one of each partition that has more records."""
    result = np.ones(len(rank), np.bool_)
    for group in (stated, ~stated):
        limit = _LAST
        for line, partition in enumerate(events.partitions):
            here = (events.lines == line) & group[events.codes]
            if partition in unread and here.any():
                known = rank[events.codes[here]]
                limit = min(limit, int(known[known < _LAST].max(initial=-1)))
        result &= ~group | (rank < limit) | (limit == _LAST)
    return result


def _spread(
    events: TransactionEvents, ends: Mapping[tuple[str, str], End], held: Flags
) -> dict[Partition, int]:
    """Return the first record of each partition that must be held back, with all that follow.

    The records that follow are of transactions that are then held back, too.
    """
    places = {code: ends[pair].place for code, pair in enumerate(events.ids) if pair in ends}
    cuts: dict[Partition, int] = {}
    while True:
        before = dict(cuts)
        mine = held[events.codes]
        for line, partition in enumerate(events.partitions):
            offsets = events.offsets[mine & (events.lines == line)]
            if len(offsets):
                cuts[partition] = min(int(offsets.min()), cuts.get(partition, _LAST))
        for code, (partition, offset) in places.items():
            if held[code]:
                cuts[partition] = min(offset, cuts.get(partition, _LAST))
        if cuts == before:
            return cuts
        held = held.copy()
        held[events.codes[_beyond(events, cuts)]] = True
        for code, (partition, offset) in places.items():
            held[code] |= offset >= cuts.get(partition, _LAST)


def _beyond(events: TransactionEvents, cuts: Mapping[Partition, int]) -> Flags:
    """Return which events lie at or after the ends of their partitions."""
    limits = np.array([cuts.get(partition, _LAST) for partition in events.partitions], np.int64)
    return events.offsets >= limits[events.lines]
