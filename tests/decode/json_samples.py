"""Schemas of JSON records that nobody wrote."""

from __future__ import annotations

import json

from distributary.decode.json.infer import Shape
from distributary.model.record import Format, WriterSchema
from distributary.registry.compile.json_compiler import compile_json


def writer_schema(shape: Shape) -> WriterSchema:
    """A shape as the schema that a decoder is built from."""
    compiled = compile_json(json.dumps(shape))
    return WriterSchema(0, Format.JSON, compiled.body, compiled.message)
