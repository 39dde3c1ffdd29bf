"""From a schema's text to what a decoder can use: one table of formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from distributary.errors import InvalidSchemaError
from distributary.model.record import Format
from distributary.registry.compile.avro import compile_avro
from distributary.registry.compile.json import compile_json
from distributary.registry.compile.protobuf import compile_proto


@dataclass(frozen=True, slots=True)
class Compiled:
    """The parts of a WriterSchema that its text decides."""

    body: bytes
    message: str
    messages: tuple[str, ...]


def _protobuf(text: str, imports: Mapping[str, str]) -> Compiled:
    compiled = compile_proto(text, imports=imports)
    return Compiled(compiled.descriptor_set, compiled.message, compiled.messages)


def _avro(text: str, imports: Mapping[str, str]) -> Compiled:
    compiled = compile_avro(text, imports=imports)
    return Compiled(compiled.body, compiled.message, compiled.messages)


def _json(text: str, imports: Mapping[str, str]) -> Compiled:
    compiled = compile_json(text, imports=imports)
    return Compiled(compiled.body, compiled.message, (compiled.message,))


COMPILERS: Mapping[Format, Callable[[str, Mapping[str, str]], Compiled]] = {
    Format.PROTOBUF: _protobuf,
    Format.AVRO: _avro,
    Format.JSON: _json,
}


def compile_schema(text: str, *, format: Format, imports: Mapping[str, str]) -> Compiled:
    """Compile a schema with the texts of what it references, by the name it imports them under."""
    compiler = COMPILERS.get(format)
    if compiler is None:
        raise InvalidSchemaError(
            f"schemas of format {format} cannot be compiled",
            where="registry",
            evidence=f"known: {', '.join(COMPILERS)}",
            next_step="register the schema in a format that is known",
        )
    return compiler(text, imports)
