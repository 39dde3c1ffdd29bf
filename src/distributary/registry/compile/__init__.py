"""Compilation of schema texts for decoders."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from distributary.model.record import Compiled, Format

NO_IMPORTS: Mapping[str, str] = MappingProxyType({})


def compile_schema(
    text: str, *, format: Format, imports: Mapping[str, str] = NO_IMPORTS
) -> Compiled:
    """Compile a schema, with the texts of its references by the names it imports them under."""
    return _compiled(text, format, tuple(sorted(imports.items())))


@lru_cache(maxsize=8192)
def _compiled(text: str, format: Format, import_items: tuple[tuple[str, str], ...]) -> Compiled:
    imports = dict(import_items)
    # imported on demand, because each needs another library
    match format:
        case Format.PROTOBUF:
            from distributary.registry.compile.protobuf_compiler import compile_proto

            return compile_proto(text, imports=imports)
        case Format.AVRO:
            from distributary.registry.compile.avro_compiler import compile_avro

            return compile_avro(text, imports=imports)
        case Format.JSON:
            from distributary.registry.compile.json_compiler import compile_json

            return compile_json(text, imports=imports)
