"""The format of records, recognised from a sample by pure functions, and the pipeline file for it.

Each recognised property is a `Finding`: a sentence, and the settings that follow from it. The
first detector that recognises the values decides their format; further properties are added.
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

from distributary.config.file.document import to_yaml
from distributary.config.lake import Tables
from distributary.decode.base import DecodeLimits, RefusedError
from distributary.decode.change.base import Recognized, Sampled
from distributary.decode.change.change_formats import CHANGE_FORMATS, recognized
from distributary.decode.formats import FORMATS, decoder_for
from distributary.decode.json.format import JSON
from distributary.decode.json.json_text import parse as parse_json
from distributary.decode.payload_format import Parse
from distributary.errors import (
    DistributaryError,
    InvalidSchemaError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from distributary.model.deadletter import Decoded
from distributary.model.names import printable
from distributary.model.record import Format, WriterSchema
from distributary.model.routing import Rejected
from distributary.observe.log_format import listed
from distributary.registry.base import SchemaRegistry
from distributary.registry.frames import Framed
from distributary.registry.frames import parse as parse_frame
from distributary.registry.message_choice import choose_message
from distributary.source.source_sample import Sample, SampledRecord, described, unclear

_ENOUGH = 0.8
"""The share of values that must match a format; the others would be dead letters."""
_MOSTLY = 0.9
"""The share of events that must have a field for its values to name the tables."""
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
"""Marks settings that need the registry."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A recognised property of the records, with its settings in the pipeline file."""

    what: str
    """A sentence without its full stop; names in it come from outside."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Sections of the pipeline file."""


class BoundedRegistry:
    """A registry with a bounded number of requests; it returns None for missing schemas."""

    def __init__(self, registry: SchemaRegistry | None) -> None:
        self.registry = registry
        self._by_id: dict[int, WriterSchema | None] = {}

    def by_id(self, schema_id: int) -> WriterSchema | None:
        """Return the schema with this id."""
        if self.registry is None or schema_id < 0:
            return None
        if schema_id not in self._by_id and len(self._by_id) < _MOST_IDS:
            self._by_id[schema_id] = self._ask(self.registry.by_id, schema_id)
        return self._by_id.get(schema_id)

    def latest(self, subject: str) -> WriterSchema | None:
        """Return the newest schema of a subject."""
        return None if self.registry is None else self._ask(self.registry.latest, subject)

    def subjects(self, topic: str) -> list[str]:
        """Return subjects that values of a topic may belong to, its own first."""
        if self.registry is None:
            return []
        own = [f"{topic}-value", topic]
        every = islice(self.registry.subjects(), 100_000)
        near = [s for s in every if s not in own and not s.endswith("-key")]
        near.sort(key=lambda subject: (topic.casefold() not in subject.casefold(), subject))
        return [*own, *near][:_MOST_SUBJECTS]

    def _ask(self, request: Callable[[Any], WriterSchema], what: object) -> WriterSchema | None:
        with suppress(SchemaNotFoundError, InvalidSchemaError):
            return request(what)
        return None


def discover(sample: Sample, registry: SchemaRegistry | None) -> tuple[Finding, ...]:
    """Return the format of a topic's or table's records. Raises SOURCE_UNCLEAR if none matches."""
    schemas = BoundedRegistry(registry)
    valued = [record for record in sample.records if record.value]
    looked = replace(sample, records=tuple(valued))
    for detect in (_framed, _json, _bare, _packed, _announced):
        if findings := detect(looked, schemas):
            return (*findings, *_beside(sample, findings))
    raise unclear(
        "could not recognise the format of these records" if valued else "there is no record",
        looked_at=sample.looked_at,
        evidence=described(sample.records),
        next_step=_next_step(valued, registry),
    )


def _next_step(valued: Sequence[SampledRecord], registry: SchemaRegistry | None) -> str:
    framed = sum(isinstance(_frame(record), Framed) for record in valued)
    if valued and framed >= _ENOUGH * len(valued) and registry is None:
        return "they may have a schema registry's header in front: name the registry, --registry"
    if not valued:
        return "send some records first, or begin with a file of `distributary demo games`"
    if registry is None:
        return (
            "they are neither JSON nor MessagePack, and have no registry header; "
            "if a registry has their schema, name it with --registry"
        )
    return "no subject of the registry matches; register their schema, or write the file by hand"


def discover_files(sample: Sample) -> tuple[Finding, ...]:
    """Return the findings about a folder of files: change events, or records."""
    match = recognized(
        [_sampled(sample.topic, record) for record in sample.records], carrier="files"
    )
    # settings of the form of CSV are those of plain files: change files have one form
    if match is not None and not any(name.startswith("csv_") for name in sample.settings):
        return tuple(_changes_of(match, {}))
    if not sample.records:
        raise unclear(
            "these files could not be read",
            looked_at=sample.looked_at,
            evidence="; ".join(sample.faults[:2]) or "no file has a record",
            next_step="compare the suffixes of the files with their contents",
        )
    format_ = str(sample.settings.get("format"))
    folders = [path.partition("/")[0] for record in sample.records if "/" in (path := record.topic)]
    what = f"Files of {format_}, each line or row a record"
    if not folders:
        if format_ == "json" and (types := _types_of_lines(sample)):
            return (Finding(f"{what}, in one folder"), *types)
        one = {"each": "{type}"}
        return (Finding(f"{what}, in one folder: one table, {sample.topic}", {"tables": one}),)
    tables = f"a table for each folder, such as {_listed(folders)}"
    return (Finding(f"{what}; {tables}", {"tables": {"each": "{type}"}}),)


def _types_of_lines(sample: Sample) -> list[Finding]:
    """Return the findings about a field that names the types; empty if no field does."""
    parsed = [_object(record.value) for record in sample.records]
    events = [event for event in parsed if event is not None]
    types = _named_by_field(events)
    if not any("tables" in finding.settings for finding in types.findings):
        return []
    rest = len(parsed) - len(events) + types.unmatched
    return [*types.findings, *_left_over(rest, len(parsed))]


def _sampled(topic: str, record: SampledRecord) -> Sampled:
    return Sampled(record.topic or topic, record.key, record.value, _object(record.value))


def _changes_of(match: Recognized, settings: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return the findings of a format of change events; `settings` are other sections."""
    tables = f", of {_listed(match.tables)}" if match.tables else ""
    found = {**settings, "cdc": match.cdc} | ({"source": match.source} if match.source else {})
    if match.each is None:
        each = Finding("A table of rows by the topic's name", {"tables": {"each": "{table}"}})
    else:
        each = Finding(
            "A table of current rows and a log of changes for each table of the database",
            {"tables": {"each": match.each}},
        )
    notes = [Finding(match.note)] if match.note else []
    return [Finding(f"{match.what}{tables}", found), *notes, each]


# Values with the registry's header.


def _frame(record: SampledRecord, *, protobuf: bool = False) -> object:
    return parse_frame(record.value or b"", record.headers, protobuf=protobuf)


def _framed(sample: Sample, schemas: BoundedRegistry) -> list[Finding]:
    matches: list[tuple[SampledRecord, WriterSchema]] = []
    for record in sample.records:
        frame = _frame(record)
        if isinstance(frame, Framed) and frame.schema_id is not None:
            schema = schemas.by_id(frame.schema_id)
            if schema is not None:
                matches.append((record, schema))
    if not matches or len(matches) < _ENOUGH * len(sample.records):
        return []
    formats = Counter(schema.format for _, schema in matches)
    format_, count = formats.most_common(1)[0]
    mine = [(record, schema) for record, schema in matches if schema.format is format_]
    schema = mine[0][1]
    if FORMATS[format_].many_messages and (wrapped := _framed_envelope(mine, schemas)):
        return wrapped
    changes = (entry.recognize_schema(schema) for entry in CHANGE_FORMATS.values())
    if match := next(filter(None, changes), None):
        framed = {"payload": {"format": str(format_), "framing": "confluent"}}
        return [*_changes_of(match, {**_BY_REGISTRY, **framed}), *_other_tables(sample.topic)]
    subject = schema.subjects[0].subject if schema.subjects else ""
    events = [type_ for record, _ in mine if (type_ := _event_header(record)) is not None]
    ids = {schema.id for _, schema in mine}
    known = f"{len(ids)} schemas" if len(ids) > 1 else "one schema"
    what = f"{FORMATS[format_].title} with the registry's header, {known}, subject {subject}"
    payload = {"format": str(format_), "framing": "confluent"}
    findings = [Finding(what, {**_BY_REGISTRY, "payload": payload})]
    rest = len(sample.records) - count
    if len(events) >= _ENOUGH * len(mine):
        what = f"CloudEvents, their type in the header ce_type: {_listed(events)}"
        findings += _cloud_events(what)
        rest += len(mine) - len(events)
        return [*findings, *_left_over(rest, len(sample.records))]
    names = {_record_name(record, schema) for record, schema in mine} - {""}
    findings.append(_by_record(names) if len(names) > 1 else _by_topic())
    return [*findings, *_left_over(rest, len(sample.records))]


def _record_name(record: SampledRecord, schema: WriterSchema) -> str:
    format = FORMATS[schema.format]
    if format.many_messages:
        frame = _frame(record, protobuf=True)
        name = format.message_at(schema, frame.indexes) if isinstance(frame, Framed) else ""
        return name if isinstance(name, str) else ""
    return schema.message if format.names_records else ""


# A protobuf message around another one, recognised by ids that the registry has.


def _framed_envelope(
    mine: Sequence[tuple[SampledRecord, WriterSchema]], schemas: BoundedRegistry
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
    values: Sequence[bytes], schema: WriterSchema, subject: str, schemas: BoundedRegistry
) -> list[Finding]:
    decoded = _decoded(values, schema, (), drop=True)
    if decoded is None or decoded.ok.num_rows < _ENOUGH * len(values):
        return []
    rows = decoded.ok
    for name in _of_kind(rows.schema, kinds.is_integer):
        ids = [value for value in rows.column(name).to_pylist() if value]
        known = [schemas.by_id(schema_id) for schema_id in ids]
        fitting = [schema for schema in known if schema is not None]
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


def _inner(pairs: Iterable[tuple[int, bytes | None]], schemas: BoundedRegistry) -> Format | None:
    """Return the format of payloads that decode with the schemas of their ids."""
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
    """Return a text column that is never missing: by its name, else with the fewest values."""
    candidates = []
    for name in _of_kind(rows.schema, kinds.is_string):
        values = rows.column(name).to_pylist()
        if all(values):
            candidates.append((not _NAMED.search(name), len(set(values)), name))
    return min(candidates)[2] if candidates else None


def _of_kind(schema: pa.Schema, test: Callable[[pa.DataType], bool]) -> list[str]:
    return [field.name for field in schema if test(field.type)]


# Values without a header, or some with one, that match a schema of the registry.


def _bare(sample: Sample, schemas: BoundedRegistry) -> list[Finding]:
    stripped = [_without_frame(record, schemas) for record in sample.records]
    values = [value for value, _ in stripped]
    mixed = any(framed for _, framed in stripped)
    own = (f"{sample.topic}-value", sample.topic)
    for subject in schemas.subjects(sample.topic) if values else ():
        schema = schemas.latest(subject)
        if schema is None or not FORMATS[schema.format].needs_schema:
            continue
        if FORMATS[schema.format].many_messages and (
            wrapped := _envelope(values, schema, subject, schemas)
        ):
            return wrapped
        decoded = _decoded(values, schema, (sample.topic,)) if subject in own else None
        if decoded is not None and len(decoded.failed) <= (1 - _ENOUGH) * len(values):
            header = "with and without" if mixed else "without"
            title = FORMATS[schema.format].title
            what = f"{title} {header} a header, by the newest schema of {subject}"
            payload = {"format": str(schema.format), "framing": "auto" if mixed else "none"}
            return [Finding(what, {**_BY_REGISTRY, "payload": payload}), _by_topic()]
    return []


def _without_frame(record: SampledRecord, schemas: BoundedRegistry) -> tuple[bytes, bool]:
    """Return the bytes behind the registry's header, if the registry has its id."""
    frame = _frame(record, protobuf=True)
    value = record.value or b""
    if isinstance(frame, Framed) and schemas.by_id(frame.schema_id or -1) is not None:
        return value[frame.payload_start :], True
    return value, False


def _announced(sample: Sample, schemas: BoundedRegistry) -> list[Finding]:
    """Return findings for a topic without records, from its subject."""
    for subject in () if sample.records else (f"{sample.topic}-value", sample.topic):
        schema = schemas.latest(subject)
        if schema is not None:
            what = (
                f"No record yet; the registry's subject {subject} is {FORMATS[schema.format].title}"
            )
            settings = {**_BY_REGISTRY, "payload": {"format": str(schema.format)}}
            return [Finding(what, settings), _by_topic()]
    return []


def _decoded(
    values: Sequence[bytes], schema: WriterSchema, names: Sequence[str], *, drop: bool = False
) -> Decoded | None:
    """Decode values with a schema; None if the schema has no message for them."""
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


def _json(sample: Sample, schemas: BoundedRegistry) -> list[Finding]:
    parsed = [_object(record.value) for record in sample.records]
    events = [event for event in parsed if event is not None]
    if not events or len(events) < _ENOUGH * len(sample.records):
        return []
    rest = len(sample.records) - len(events)
    if match := recognized(
        [_sampled(sample.topic, each) for each in sample.records], carrier="messages"
    ):
        left_over = _left_over(rest, len(sample.records))
        findings = _changes_of(match, {"payload": {"format": "json"}})
        return [*findings, *_other_tables(sample.topic), *left_over]
    payload: dict[str, Any] = {"format": "json"}
    subject = next(
        (
            subject
            for subject in (f"{sample.topic}-value", sample.topic)
            if (schema := schemas.latest(subject)) is not None and schema.format is JSON.language
        ),
        None,
    )
    fields = _fields_of(events)
    if subject is None:
        # without a matching schema, it is inferred from the records
        finding = Finding(f"JSON without a schema, {fields}", {"payload": payload})
    else:
        what = f"JSON by the registry's subject {subject}, {fields}"
        finding = Finding(what, {**_BY_REGISTRY, "payload": payload})
    # with a registry, the type would name the subject of its schema
    types = _event_types(parsed, sample) if subject is None else _Types([])
    tables = any("tables" in finding.settings for finding in types.findings)
    left_over = _left_over(rest + types.unmatched, len(sample.records))
    return [finding, *types.findings, *([] if tables else [_by_topic()]), *left_over]


def _fields_of(events: Iterable[Mapping[str, Any]]) -> str:
    keys = Counter(key for event in events for key in event)
    return f"{len(keys):,} fields: {_listed(key for key, _ in keys.most_common())}"


def _packed(sample: Sample, schemas: BoundedRegistry) -> list[Finding]:
    """Recognize formats other than JSON whose records need no schema: all bytes are one map."""
    for format in FORMATS.values():
        if format.parse is None or format.as_json is None:
            continue
        parsed = [_map(record.value, format.parse) for record in sample.records]
        events = [event for event in parsed if event]
        if not events or len(events) < _ENOUGH * len(sample.records):
            continue
        what = f"{format.title} without a schema, {_fields_of(events)}"
        types = _named_by_field(events)
        tables = any("tables" in found.settings for found in types.findings)
        rest = len(sample.records) - len(events) + types.unmatched
        return [
            Finding(what, {"payload": {"format": format.name}}),
            *types.findings,
            *([] if tables else [_by_topic()]),
            *_left_over(rest, len(sample.records)),
        ]
    return []


def _map(value: bytes | None, parse: Parse) -> dict[str, Any] | None:
    with suppress(RefusedError):
        content = parse(value or b"", max_depth=_LIMITS.max_depth)
        return content if isinstance(content, dict) else None
    return None


def _object(value: bytes | None) -> dict[str, Any] | None:
    if not value or len(value) > _LONGEST_JSON or value[:1] not in b"{ \t\r\n":
        return None
    with suppress(RefusedError):
        document = parse_json(value, max_depth=_LIMITS.max_depth)
        return document if isinstance(document, dict) else None
    return None


def _other_tables(topic: str) -> Iterator[Finding]:
    """Yield the pattern for a connector's topics, one per table: `prefix.schema.table`."""
    prefix, dot, rest = topic.partition(".")
    if dot and rest:
        pattern = f"{re.escape(prefix)}\\..*"
        yield Finding(f"All tables of the connector: topic_pattern {pattern} in place of topics")


@dataclass(frozen=True, slots=True)
class _Types:
    """Findings about the types of several kinds of events on one topic."""

    findings: list[Finding]
    unmatched: int = 0
    """The number of events in the sample without this type."""


def _event_types(parsed: Sequence[Mapping[str, Any] | None], sample: Sample) -> _Types:
    """Find the types of events: from CloudEvents or a field; empty if there are none.

    `parsed` are the records of the sample, None for those that are not JSON.
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
        # if not every data is an object, the event itself becomes the row
        return _Types([Finding(what), _by_field("type")], unmatched)
    return _named_by_field(events)


def _event_header(record: SampledRecord) -> str | None:
    """Return the type of a CloudEvent of binary mode; None for any other record."""
    type_ = dict(record.headers).get("ce_type")
    return None if not type_ else type_.decode("utf-8", "replace")


def _named_by_field(events: Sequence[Mapping[str, Any]]) -> _Types:
    """Choose the first field that has one of several types in nearly all events."""
    texts = {
        name: [text for event in events if isinstance(text := event.get(name), str)]
        for name in _TYPE_FIELDS
    }
    seen = {name: values for name, values in texts.items() if values}
    chosen = next(
        (
            name
            for name, values in seen.items()
            if len(values) >= _MOSTLY * len(events) and 1 < len(set(values)) <= _MOST_TYPES
        ),
        None,
    )
    others = [
        f"{name} ({_counted(set(values))} in {len(values):,} of {len(events):,} events)"
        for name, values in seen.items()
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


# Further properties beside the format, and texts.


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


def _listed(names: Iterable[object]) -> str:
    every = sorted({str(name) for name in names})
    return listed((printable(name, longest=40) for name in every), most=_SHOWN)


# The pipeline file.

_ORDER = ("source", "registry", "envelope", "payload", "cdc", "tables", "lake")
_ABOUT = ("envelope", "cdc", "payload", "source")
"""The sections of the pipeline file before which a finding may be written, by priority."""
_LONGEST_COMMENT = 110
_LONGEST_LINE = 100


def document(
    given: Mapping[str, Mapping[str, Any]], name: str, findings: Iterable[Finding]
) -> dict[str, Any]:
    """Return the settings of a pipeline: the given ones and those of the findings.

    A registry that no finding needs is left out: records would be checked against unrelated
    schemas.
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
    """Return the settings as a file, with a comment for each finding before its section."""
    comments: dict[str, list[str]] = {}
    for finding in findings:
        section = next((key for key in _ABOUT if key in finding.settings), "tables")
        comments.setdefault(section, []).append(f"# {_comment(finding.what)}")
    parts = [
        f"# yaml-language-server: $schema={schema}",
        f"# Written by `distributary init` from {_comment(looked_at)}.",
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
    """Return a section on one line if it fits, so that the settings are easy to read."""
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
    """Return a text on one line."""
    return printable(text, longest=_LONGEST_COMMENT)
