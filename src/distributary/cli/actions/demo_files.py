"""The pipeline files that demos write, as a person would."""

from __future__ import annotations

_HEAD = """\
# yaml-language-server: $schema={schema}
# Made by `distributary demo {subject}`. {after}
name: {subject}

"""

_WORKS = "Everything else works on it: run, status, plan, dlq, trace."
_ENDED = """\
Its broker and its registry ended with it:
# status, tables, schema, dlq list, dlq show and trace work without them."""

_DELTA_SOURCE = """\
source:
  type: delta
  path: {source}
  value: wrapper
  key: key
  timestamp: produced_at

registry:
  path: {schemas}
"""

_KAFKA_SOURCE = """\
source:
  type: kafka
  bootstrap_servers: {bootstrap_servers}
  topics: [{topic}]

registry:
  url: {registry}
"""

_GAMES = """
envelope:
  format: protobuf
  subject: wrapper-value
  type: game_name
  schema_id: schema_id
  payload: payload

payload:
  format: protobuf
  validate: registry

tables:
  bronze: bronze_events
  each: silver_{{type}}
  unified: unified_gold
"""

_ORDERS = """
payload:
  format: avro
  framing: confluent
  validate: registry

tables:
  each: "{{topic}}"
  partition_by: [_date]
  metadata: [key, topic, partition, offset, timestamp, schema_id, raw]
"""

_CHANGES = """\
source:
  type: files
  path: {source}
  format: avro
  settle: 0s                   # the demo puts whole files in place

cdc:
  format: datastream
  deletes: hard
  backfill: before_cdc

tables:
  each: "{{database}}_{{table}}"
"""

_TAIL = """
lake:
  path: {root}

trigger: available_now
"""


def pipeline_file(subject: str, *, kafka: bool, **values: str) -> str:
    """The text of a demo's file; values are YAML already."""
    source = _KAFKA_SOURCE if kafka else _DELTA_SOURCE
    bodies = {"games": source + _GAMES, "orders": source + _ORDERS, "cdc": _CHANGES}
    after = _ENDED if kafka else _WORKS
    text = _HEAD + bodies[subject] + _TAIL
    return text.format(subject=subject, after=after, **values)
