"""What records are, told by a sample of them: pure functions, and the pipeline file they lead to.

Each thing that was seen is a `Finding`: a sentence, and the settings that follow from it. The first
detector that recognizes the values decides about their format; what is noticed beside it is added.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pyarrow as pa
from pyarrow import types as kinds

from distributary.config.document import printable, to_yaml
from distributary.config.lake import Tables
from distributary.decode.base import DecodeLimits, RefusedError
from distributary.decode.change.debezium.messages import type_of
from distributary.decode.change.debezium.schema import is_envelope
from distributary.decode.formats import decoder_for
from distributary.decode.json.text import parse as parse_json
from distributary.errors import (
    DecodeError,
    DistributaryError,
    InvalidSchemaError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from distributary.model.deadletter import Decoded
from distributary.model.plan import Rejected
from distributary.model.record import Format, WriterSchema
from distributary.observe.log_format import listed
from distributary.operations.samples import Record, Sample, described, unclear
from distributary.registry.base import SchemaRegistry
from distributary.registry.messages import choose_message
from distributary.registry.wire import Framed, message_by_index
from distributary.registry.wire import parse as parse_frame

_ENOUGH = 0.8
"""The share of values that must be of a format; the others would be dead letters."""
_MOSTLY = 0.9
"""The share of events in which a field must name the type, to be what tables are made by."""
_MOST_IDS = 100
_MOST_SUBJECTS = 40
_MOST_TYPES = 50
_LONGEST_JSON = 4 << 20
_LIMITS = DecodeLimits()
_TYPE_FIELDS = ("event", "type", "event_type", "eventType", "event_name", "kind", "@type", "__type")
_CLOUD_EVENT = frozenset({"specversion", "type", "source", "id"})
_NAMED = re.compile(r"(^|_)(type|event|kind|name)$", re.IGNORECASE)
_SHOWN = 5
_BY_REGISTRY: dict[str, Mapping[str, Any]] = {"registry": {}}
"""Beside settings that mean nothing without a registry."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen, and what it means for the pipeline file."""

    what: str
    """A sentence without its full stop; names in it come from outside."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Sections of the pipeline file."""


class Schemas:
    """A registry that is asked a bounded number of times; None for what it does not have."""

    def __init__(self, registry: SchemaRegistry | None) -> None:
        self.registry = registry
        self._by_id: dict[int, WriterSchema | None] = {}

    def by_id(self, schema_id: int) -> WriterSchema | None:
        """The schema with this id."""
        if self.registry is None or schema_id < 0:
            return None
        if schema_id not in self._by_id and len(self._by_id) < _MOST_IDS:
            self._by_id[schema_id] = self._asked(self.registry.by_id, schema_id)
        return self._by_id.get(schema_id)

    def latest(self, subject: str) -> WriterSchema | None:
        """The newest schema of a subject."""
        return None if self.registry is None else self._asked(self.registry.latest, subject)

    def subjects(self, topic: str) -> list[str]:
        """Subjects that values of a topic may be of, its own first."""
        if self.registry is None:
            return []
        own = [f"{topic}-value", topic]
        every = islice(self.registry.subjects(), 100_000)
        near = [s for s in every if s not in own and not s.endswith("-key")]
        near.sort(key=lambda subject: (topic.casefold() not in subject.casefold(), subject))
        return [*own, *near][:_MOST_SUBJECTS]

    def _asked(self, ask: Callable[[Any], WriterSchema], what: object) -> WriterSchema | None:
        with suppress(SchemaNotFoundError, InvalidSchemaError):
            return ask(what)
        return None


def discover(sample: Sample, registry: SchemaRegistry | None) -> tuple[Finding, ...]:
    """What the records of a topic or a table are. Raises SOURCE_UNCLEAR where nobody can tell."""
    schemas = Schemas(registry)
    valued = [record for record in sample.records if record.value]
    looked = replace(sample, records=tuple(valued))
    for detect in (_framed, _json, _bare, _announced):
        if findings := detect(looked, schemas):
            return (*findings, *_beside(sample, findings))
    raise unclear(
        "nobody can say what these records are" if valued else "there is no record to look at",
        looked_at=sample.looked_at,
        evidence=described(sample.records),
        next_step=_next_step(valued, registry),
    )


def _next_step(valued: Sequence[Record], registry: SchemaRegistry | None) -> str:
    framed = sum(isinstance(_frame(each), Framed) for each in valued)
    if valued and framed >= _ENOUGH * len(valued) and registry is None:
        return "they may have a schema registry's header in front: name the registry, --registry"
    if not valued:
        return "send some records first, or begin with a file of `distributary demo games`"
    if registry is None:
        return "neither JSON nor framed; if a registry has their schema, name it with --registry"
    return "no subject of the registry fits; register their schema, or write the file by hand"


def discover_files(sample: Sample) -> tuple[Finding, ...]:
    """What the events of a folder of files are."""
    claims = Counter(record.key for record in sample.records if record.key)
    tables = [table for claim in claims if (table := _claimed(claim))]
    if not tables:
        raise unclear(
            "these files are not the change events of Datastream",
            looked_at=sample.looked_at,
            evidence="; ".join(sample.faults[:2]) or described(sample.records),
            next_step="files are read as change data only; send other records to a topic or table",
        )
    schemas = any(table[1] for table in tables)
    return (
        Finding(
            f"Change events of Datastream, of {_listed('.'.join(filter(None, t)) for t in tables)}",
            {"cdc": {"format": "datastream"}},
        ),
        _change_tables(schemas=schemas),
    )


def _claimed(claim: bytes) -> list[str] | None:
    with suppress(RefusedError):
        found = parse_json(claim, max_depth=4)
        if isinstance(found, list) and len(found) == 3 and found[2]:
            return [str(part or "") for part in found]
    return None


def _change_tables(*, schemas: bool) -> Finding:
    each = "{schema}_{table}" if schemas else "{database}_{table}"
    return Finding(
        "A table of current rows and a log of changes for each table of the database",
        {"tables": {"each": each}},
    )


# Values with the registry's header.


def _frame(record: Record, *, protobuf: bool = False) -> object:
    return parse_frame(record.value or b"", record.headers, protobuf=protobuf)


def _framed(sample: Sample, schemas: Schemas) -> list[Finding]:
    found: list[tuple[Record, WriterSchema]] = []
    for record in sample.records:
        frame = _frame(record)
        if isinstance(frame, Framed) and frame.schema_id is not None:
            schema = schemas.by_id(frame.schema_id)
            if schema is not None:
                found.append((record, schema))
    if not found or len(found) < _ENOUGH * len(sample.records):
        return []
    formats = Counter(schema.format for _, schema in found)
    format_, count = formats.most_common(1)[0]
    mine = [(record, schema) for record, schema in found if schema.format is format_]
    schema = mine[0][1]
    if format_ is Format.PROTOBUF and (wrapped := _framed_envelope(mine, schemas)):
        return wrapped
    if format_ is Format.AVRO and _is_debezium(schema):
        return [*_debezium_avro(schema), *_other_tables(sample.topic)]
    subject = schema.subjects[0].subject if schema.subjects else ""
    events = [type_ for record, _ in mine if (type_ := _event_header(record)) is not None]
    ids = {each.id for _, each in mine}
    known = f"{len(ids)} schemas" if len(ids) > 1 else "one schema"
    what = f"{_word(format_)} with the registry's header, {known}, subject {subject}"
    payload = {"format": str(format_), "framing": "confluent"}
    findings = [Finding(what, {**_BY_REGISTRY, "payload": payload})]
    rest = len(sample.records) - count
    if len(events) >= _ENOUGH * len(mine):
        what = f"CloudEvents, their type in the header ce_type: {_listed(events)}"
        findings += _cloud_events(what)
        rest += len(mine) - len(events)
        return [*findings, *_left_over(rest, len(sample.records))]
    names = {_record_name(record, each) for record, each in mine} - {""}
    findings.append(_by_record(names) if len(names) > 1 else _by_topic())
    return [*findings, *_left_over(rest, len(sample.records))]


def _record_name(record: Record, schema: WriterSchema) -> str:
    if schema.format is Format.PROTOBUF:
        frame = _frame(record, protobuf=True)
        return (
            message_by_index(schema.body, frame.indexes) or "" if isinstance(frame, Framed) else ""
        )
    return schema.message if schema.format is Format.AVRO else ""


def _is_debezium(schema: WriterSchema) -> bool:
    try:
        return is_envelope(type_of(schema))
    except DecodeError:
        return False


def _debezium_avro(schema: WriterSchema) -> list[Finding]:
    source = type_of(schema).member("source")
    return [
        Finding(
            "Change events of Debezium in Avro, with the registry's header",
            {
                **_BY_REGISTRY,
                "payload": {"format": "avro", "framing": "confluent"},
                "cdc": {"format": "debezium"},
            },
        ),
        _change_tables(schemas=source is not None and source.member("schema") is not None),
    ]


# A protobuf message around another: told by ids in it that the registry knows.


def _framed_envelope(
    mine: Sequence[tuple[Record, WriterSchema]], schemas: Schemas
) -> list[Finding]:
    schema = max((each for _, each in mine), key=lambda each: each.id)
    values = []
    for record, _ in mine:
        frame = _frame(record, protobuf=True)
        if isinstance(frame, Framed) and record.value is not None:
            values.append(record.value[frame.payload_start :])
    subject = schema.subjects[0].subject if schema.subjects else None
    return _envelope(values, schema, subject, schemas) if subject else []


def _envelope(
    values: Sequence[bytes], schema: WriterSchema, subject: str, schemas: Schemas
) -> list[Finding]:
    decoded = _decoded(values, schema, (), drop=True)
    if decoded is None or decoded.ok.num_rows < _ENOUGH * len(values):
        return []
    rows = decoded.ok
    for name in _of_kind(rows.schema, kinds.is_integer):
        ids = [each for each in rows.column(name).to_pylist() if each]
        known = [schemas.by_id(each) for each in ids]
        fitting = [each for each in known if each is not None]
        if not ids or len(fitting) < _ENOUGH * len(values):
            continue
        for payload in _of_kind(rows.schema, kinds.is_binary):
            parts = rows.column(payload).to_pylist()
            inner = _inner(zip(ids, parts, strict=False), schemas)
            type_ = _type_field(rows)
            if inner is not None and type_ is not None:
                return _wrapped(rows, (type_, name, payload), subject, inner)
    return []


def _wrapped(
    rows: pa.RecordBatch, names: tuple[str, str, str], subject: str, inner: Format
) -> list[Finding]:
    type_, schema_id, payload = names
    types = set(rows.column(type_).to_pylist())
    fields = {"type": type_, "schema_id": schema_id, "payload": payload}
    return [
        Finding(
            f"A protobuf envelope: {type_} names the type, {schema_id} the schema of {payload}",
            {
                **_BY_REGISTRY,
                "envelope": {"format": "protobuf", "subject": subject, **fields},
                "payload": {"format": str(inner)},
            },
        ),
        Finding(
            f"{len(types):,} types in the sample: {_listed(types)}",
            {"tables": {"bronze": "bronze_events", "each": "silver_{type}"}},
        ),
    ]


def _inner(pairs: Iterable[tuple[int, bytes | None]], schemas: Schemas) -> Format | None:
    """The format of payloads that decode with the schemas that their ids name."""
    by_schema: dict[int, list[bytes]] = {}
    for schema_id, payload in pairs:
        by_schema.setdefault(schema_id, []).append(payload or b"")
    good: Counter[Format] = Counter()
    total = 0
    for schema_id, payloads in by_schema.items():
        total += len(payloads)
        schema = schemas.by_id(schema_id)
        decoded = None if schema is None else _decoded(payloads, schema, ())
        if schema is not None and decoded is not None:
            good[schema.format] += len(payloads) - len(decoded.failed)
    (best, count) = good.most_common(1)[0] if good else (None, 0)
    return best if total and count >= _ENOUGH * total else None


def _type_field(rows: pa.RecordBatch) -> str | None:
    """A text that is never missing; by its name, else the one with the fewest values."""
    found = []
    for name in _of_kind(rows.schema, kinds.is_string):
        values = rows.column(name).to_pylist()
        if all(values):
            found.append((not _NAMED.search(name), len(set(values)), name))
    return min(found)[2] if found else None


def _of_kind(schema: pa.Schema, test: Callable[[pa.DataType], bool]) -> list[str]:
    return [each.name for each in schema if test(each.type)]


# Values without a header, or some with and some without, that a schema of the registry fits.


def _bare(sample: Sample, schemas: Schemas) -> list[Finding]:
    stripped = [_without_frame(record, schemas) for record in sample.records]
    values = [value for value, _ in stripped]
    mixed = any(framed for _, framed in stripped)
    own = (f"{sample.topic}-value", sample.topic)
    for subject in schemas.subjects(sample.topic) if values else ():
        schema = schemas.latest(subject)
        if schema is None or schema.format is Format.JSON:
            continue
        if schema.format is Format.PROTOBUF and (
            wrapped := _envelope(values, schema, subject, schemas)
        ):
            return wrapped
        decoded = _decoded(values, schema, (sample.topic,)) if subject in own else None
        if decoded is not None and len(decoded.failed) <= (1 - _ENOUGH) * len(values):
            header = "with and without" if mixed else "without"
            what = f"{_word(schema.format)} {header} a header, by the newest schema of {subject}"
            payload = {"format": str(schema.format), "framing": "auto" if mixed else "none"}
            return [Finding(what, {**_BY_REGISTRY, "payload": payload}), _by_topic()]
    return []


def _without_frame(record: Record, schemas: Schemas) -> tuple[bytes, bool]:
    """What stands behind the registry's header, where the registry knows the id in it."""
    frame = _frame(record, protobuf=True)
    value = record.value or b""
    if isinstance(frame, Framed) and schemas.by_id(frame.schema_id or -1) is not None:
        return value[frame.payload_start :], True
    return value, False


def _announced(sample: Sample, schemas: Schemas) -> list[Finding]:
    """A topic without records whose subject says what they will be."""
    for subject in () if sample.records else (f"{sample.topic}-value", sample.topic):
        schema = schemas.latest(subject)
        if schema is not None:
            what = f"No record yet; the registry's subject {subject} is {_word(schema.format)}"
            settings = {**_BY_REGISTRY, "payload": {"format": str(schema.format)}}
            return [Finding(what, settings), _by_topic()]
    return []


def _decoded(
    values: Sequence[bytes], schema: WriterSchema, names: Sequence[str], *, drop: bool = False
) -> Decoded | None:
    """The values as rows of a schema; None where the schema has no message for them."""
    message = choose_message(schema, names=names)
    if isinstance(message, Rejected):
        return None
    try:
        limits = replace(_LIMITS, drop_unknown_fields=drop)
        return decoder_for(schema, message, limits).decode(pa.array(values, pa.binary()))
    except DistributaryError as error:
        if isinstance(error, RegistryUnavailableError):
            raise
        return None


# JSON.


def _json(sample: Sample, schemas: Schemas) -> list[Finding]:
    parsed = [_object(record.value) for record in sample.records]
    events = [event for event in parsed if event is not None]
    if not events or len(events) < _ENOUGH * len(sample.records):
        return []
    rest = len(sample.records) - len(events)
    changes = [_row_change(event) for event in events]
    told = [each for each in changes if each is not None]
    if len(told) >= _ENOUGH * len(events):
        left_over = _left_over(rest, len(sample.records))
        return [*_debezium_json(told), *_other_tables(sample.topic), *left_over]
    payload: dict[str, Any] = {"format": "json"}
    subject = next(
        (
            subject
            for subject in (f"{sample.topic}-value", sample.topic)
            if (schema := schemas.latest(subject)) is not None and schema.format is Format.JSON
        ),
        None,
    )
    keys = Counter(key for event in events for key in event)
    fields = f"{len(keys):,} fields: {_listed(key for key, _ in keys.most_common())}"
    if subject is None:
        # without a schema that fits, records are what they look like
        finding = Finding(f"JSON without a schema, {fields}", {"payload": payload})
    else:
        what = f"JSON by the registry's subject {subject}, {fields}"
        finding = Finding(what, {**_BY_REGISTRY, "payload": payload})
    # with a registry, the type would name the subject of its schema
    types = _event_types(parsed, sample) if subject is None else _Types([])
    tables = any("tables" in found.settings for found in types.findings)
    left_over = _left_over(rest + types.unmatched, len(sample.records))
    return [finding, *types.findings, *([] if tables else [_by_topic()]), *left_over]


def _object(value: bytes | None) -> dict[str, Any] | None:
    if not value or len(value) > _LONGEST_JSON or value[:1] not in b"{ \t\r\n":
        return None
    with suppress(RefusedError):
        found = parse_json(value, max_depth=_LIMITS.max_depth)
        return found if isinstance(found, dict) else None
    return None


def _row_change(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a message of Debezium's says about its source; None for any other."""
    inner = event["payload"] if {"schema", "payload"} <= event.keys() else event
    if not isinstance(inner, dict):
        return None
    source = inner.get("source")
    if isinstance(source, dict) and source.get("connector") and "op" in inner:
        return source
    # flattened by the connector, with what it was told to add
    return {"flat": True} if any(key.startswith("__op") for key in inner) else None


def _debezium_json(told: Sequence[Mapping[str, Any]]) -> list[Finding]:
    flat = any("flat" in source for source in told)
    names = {".".join(filter(None, map(str, _place(source)))) for source in told} - {""}
    what = f"Change events of Debezium in JSON{', flattened' * flat}, of {_listed(names)}"
    settings = {"payload": {"format": "json"}, "cdc": {"format": "debezium"}}
    tables = Finding("A table of rows by the topic's name", {"tables": {"each": "{table}"}})
    schemas = any(source.get("schema") for source in told)
    return [Finding(what, settings), tables if flat else _change_tables(schemas=schemas)]


def _other_tables(topic: str) -> Iterator[Finding]:
    """A connector has a topic for each table, `prefix.schema.table`."""
    prefix, dot, rest = topic.partition(".")
    if dot and rest:
        pattern = f"{re.escape(prefix)}\\..*"
        yield Finding(f"All tables of the connector: topic_pattern {pattern} in place of topics")


def _place(source: Mapping[str, Any]) -> tuple[Any, ...]:
    return source.get("db"), source.get("schema"), source.get("table") or source.get("collection")


@dataclass(frozen=True, slots=True)
class _Types:
    """What names the types of several kinds of events on one topic."""

    findings: list[Finding]
    unmatched: int = 0
    """Events of the sample that do not name their type so."""


def _event_types(parsed: Sequence[Mapping[str, Any] | None], sample: Sample) -> _Types:
    """Find what names the types of events: CloudEvents, or a field; nothing where none does.

    `parsed` are the records of the sample, None for those that are no JSON.
    """
    headers = [_event_header(record) for record in sample.records]
    events = [event for event in parsed if event is not None]
    pairs = zip(parsed, headers, strict=True)
    bare = [event for event, type_ in pairs if event is not None and type_ is None]
    structured = [event for event in bare if event.keys() >= _CLOUD_EVENT]
    binary = [type_ for type_ in headers if type_ is not None]
    if len(binary) + len(structured) >= _ENOUGH * len(sample.records):
        unmatched = len(bare) - len(structured)
        if binary:
            what = f"CloudEvents, their type in the header ce_type: {_listed(binary)}"
            return _Types(_cloud_events(what), unmatched)
        types = {str(event.get("type")) for event in structured}
        what = f"CloudEvents, their type in the field type: {_listed(types)}"
        if all(isinstance(event.get("data"), dict) for event in structured):
            return _Types(_cloud_events(what), unmatched)
        # not all have data that is an object: then the event itself is the row
        return _Types([Finding(what), _by_field("type")], unmatched)
    return _named_by_field(events)


def _event_header(record: Record) -> str | None:
    """Return the type of a CloudEvent of binary mode; None for any other record."""
    type_ = dict(record.headers).get("ce_type")
    return None if not type_ else type_.decode("utf-8", "replace")


def _named_by_field(events: Sequence[Mapping[str, Any]]) -> _Types:
    """Choose the first field that names one of several types in all events but a few."""
    texts = {
        name: [text for event in events if isinstance(text := event.get(name), str)]
        for name in _TYPE_FIELDS
    }
    seen = {name: found for name, found in texts.items() if found}
    chosen = next(
        (
            name
            for name, found in seen.items()
            if len(found) >= _MOSTLY * len(events) and 1 < len(set(found)) <= _MOST_TYPES
        ),
        None,
    )
    others = [
        f"{name} ({_counted(set(found))} in {len(found):,} of {len(events):,} events)"
        for name, found in seen.items()
        if name != chosen
    ]
    if chosen is None:
        considered = f"No field names several types; considered: {'; '.join(others)}"
        return _Types([Finding(considered)] if others else [])
    names = set(seen[chosen])
    what = f"{len(names):,} types, named by the field {chosen}: {_listed(names)}"
    findings = [Finding(what), _by_field(chosen)]
    if others:
        findings.append(Finding(f"Considered for the type, too: {'; '.join(others)}"))
    return _Types(findings, len(events) - len(seen[chosen]))


def _counted(values: set[str]) -> str:
    return f"{len(values):,} value{'s' * (len(values) != 1)}"


def _cloud_events(what: str) -> list[Finding]:
    metadata = [*Tables.model_fields["metadata"].default, "cloudevent"]
    return [
        Finding(what, {"envelope": {"format": "cloudevents"}}),
        Finding(
            "A table for each type; id, source, time and subject are in its column _cloudevent",
            {"tables": {"each": "{type}", "metadata": metadata}},
        ),
    ]


def _by_field(name: str) -> Finding:
    return Finding("A table for each type", {"tables": {"each": f"{{field:{name}}}"}})


# What is noticed beside the format, and the words for it.


def _beside(sample: Sample, findings: Sequence[Finding]) -> Iterator[Finding]:
    empty = sum(record.key is not None and record.value is None for record in sample.records)
    if empty and not any("cdc" in finding.settings for finding in findings):
        yield Finding(
            f"{empty:,} of {len(sample.records):,} records have a key and no value: skipped",
            {"source": {"tombstones": "skip"}},
        )


def _by_topic() -> Finding:
    return Finding("One table, named like the topic", {"tables": {"each": "{topic}"}})


def _by_record(names: set[str]) -> Finding:
    what = f"A table for each of {len(names):,} kinds of records: {_listed(names)}"
    return Finding(what, {"tables": {"each": "{record}"}})


def _left_over(count: int, total: int) -> Iterator[Finding]:
    if count:
        what = f"{count:,} of {total:,} sampled records do not match and will become dead letters"
        yield Finding(what)


def _word(format_: Format) -> str:
    return {"json": "JSON", "avro": "Avro", "protobuf": "Protobuf"}[str(format_)]


def _listed(names: Iterable[object]) -> str:
    every = sorted({str(name) for name in names})
    return listed((printable(name, longest=40) for name in every), most=_SHOWN)


# The pipeline file.

_ORDER = ("source", "registry", "envelope", "payload", "cdc", "tables", "lake")
_ABOUT = ("envelope", "cdc", "payload", "source")
"""Which of its sections a finding stands before."""
_LONGEST_COMMENT = 110
_LONGEST_LINE = 100


def document(
    given: Mapping[str, Mapping[str, Any]], name: str, findings: Iterable[Finding]
) -> dict[str, Any]:
    """The settings of a pipeline: what was typed, and what was found.

    A registry that no finding asks for is left out: records would be held to schemas of others.
    """
    sections: dict[str, dict[str, Any]] = {key: dict(value) for key, value in given.items()}
    needed = False
    for finding in findings:
        needed |= "registry" in finding.settings
        for section, settings in finding.settings.items():
            sections[section] = sections.get(section, {}) | dict(settings)
    if not needed:
        sections.pop("registry", None)
    return {"name": name, **{key: sections[key] for key in _ORDER if sections.get(key)}}


def pipeline_text(
    settings: Mapping[str, Any], findings: Iterable[Finding], *, looked_at: str, schema: str
) -> str:
    """The settings as a file with a comment for each finding, before the section it is about."""
    comments: dict[str, list[str]] = {}
    for finding in findings:
        section = next((key for key in _ABOUT if key in finding.settings), "tables")
        comments.setdefault(section, []).append(f"# {_comment(finding.what)}")
    parts = [
        f"# yaml-language-server: $schema={schema}",
        f"# Written by `distributary init`, which has seen {_comment(looked_at)}.",
        "# Every other setting: `distributary validate --print-schema`.",
        f"name: {to_yaml(settings['name']).rstrip()}",
        "",
    ]
    for section in _ORDER:
        if section in settings:
            parts += ["", *comments.get(section, ())] if section in comments else []
            parts.append(_section(section, settings[section]))
    parts += ["trigger: available_now    # or continuous, or every 10s"]
    return "\n".join(parts) + "\n"


def _section(name: str, settings: Mapping[str, Any]) -> str:
    """A section in one line where it fits: what was found shall be seen at a glance."""
    if name != "source" and all(isinstance(value, str | list) for value in settings.values()):
        pairs = (f"{key}: {_inline(value)}" for key, value in settings.items())
        line = f"{name}: {{{', '.join(pairs)}}}"
        if len(line) <= _LONGEST_LINE:
            return line
    return to_yaml({name: settings}).rstrip()


def _inline(value: str | list[str]) -> str:
    if isinstance(value, str):
        return to_yaml(value).rstrip()
    return f"[{', '.join(map(_inline, value))}]"


def _comment(text: str) -> str:
    """One line, whatever is in it."""
    return printable(text, longest=_LONGEST_COMMENT)
