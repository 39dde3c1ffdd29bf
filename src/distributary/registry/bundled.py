"""Schemas that every author may import without registering them first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

_META = """\
// What Confluent's tools attach to files, messages, fields and enums.
syntax = "proto3";

package confluent;

import "google/protobuf/descriptor.proto";

message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}

message Rule {
  string name = 1;
  string doc = 2;
  string expr = 3;
  string sql = 4;
}

extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""

_DECIMAL = """\
// An unscaled two's complement integer, big endian, and its scale; precision 0 is unlimited.
syntax = "proto3";

package confluent.type;

message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
"""

CONFLUENT: Mapping[str, str] = {
    "confluent/meta.proto": _META,
    "confluent/type/decimal.proto": _DECIMAL,
    # the folder has both spellings in the wild
    "confluent/types/decimal.proto": _DECIMAL,
}

_MENTIONED = re.compile(r"(?:google/type|confluent)/[a-z_/]+\.proto")


def google_protobuf_folder() -> Traversable:
    """The folder under which grpcio-tools keeps `google/protobuf/*.proto`."""
    return resources.files("grpc_tools") / "_proto"


def is_bundled(name: str) -> bool:
    """Whether an import is answered from here, whatever a registry says about it."""
    return name in CONFLUENT or name in _google_protobuf() or name in _google_type()


def bundled_for(texts: Iterable[str]) -> dict[str, str]:
    """The bundled files that these texts mention, and what those mention in turn.

    `google/protobuf/*` is not among them: the compiler reads it from its own folder. A mention in
    a comment counts too, which costs a file that nobody reads.
    """
    found: dict[str, str] = {}
    waiting = list(texts)
    while waiting:
        for name in set(_MENTIONED.findall(waiting.pop())) - found.keys():
            text = CONFLUENT.get(name) or _google_type().get(name)
            if text is not None:
                found[name] = text
                waiting.append(text)
    return found


@cache
def _google_protobuf() -> frozenset[str]:
    folder = google_protobuf_folder() / "google" / "protobuf"
    names = {f"google/protobuf/{entry.name}" for entry in folder.iterdir()}
    names |= {f"google/protobuf/compiler/{e.name}" for e in (folder / "compiler").iterdir()}
    return frozenset(name for name in names if name.endswith(".proto"))


@cache
def _google_type() -> Mapping[str, str]:
    # googleapis-common-protos is not needed for anything else: without it, these imports are
    # reported as missing like any other
    try:
        folder = resources.files("google.type")
    except ModuleNotFoundError:
        return {}
    return {
        f"google/type/{entry.name}": entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".proto")
    }
