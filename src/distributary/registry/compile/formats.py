"""From a schema's text to what a decoder can use: one table of formats."""

from __future__ import annotations

from collections.abc import Mapping

from distributary.model.record import Compiled, Format
from distributary.registry.compile.avro import compile_avro
from distributary.registry.compile.json import compile_json
from distributary.registry.compile.protobuf import compile_proto

_COMPILERS = {
    Format.PROTOBUF: compile_proto,
    Format.AVRO: compile_avro,
    Format.JSON: compile_json,
}


def compile_schema(text: str, *, format: Format, imports: Mapping[str, str]) -> Compiled:
    """Compile a schema with the texts of what it references, by the name it imports them under."""
    return _COMPILERS[format](text, imports=imports)
