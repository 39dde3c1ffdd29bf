"""Defaults of Avro fields in the lake's terms: JSON, as `model.table.Column` keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from distributary.decode.avro_payload import Payload
from distributary.decode.avro_reader import Compiler
from distributary.decode.avro_shape import Kind, Member, Value
from distributary.decode.avro_wire import Cursor, StoppedAtError
from distributary.model.table import Column


def columns_with_defaults(payload: Payload) -> tuple[Column, ...]:
    """A payload's columns, each with its own default and those of the fields inside it."""
    texts = _Texts(payload)
    return tuple(
        replace(
            column,
            default=texts.of(member),
            inner_defaults=tuple(texts.inside(member.value, "")),
        )
        for column, member in zip(payload.columns, payload.row.shown, strict=True)
    )


class _Texts:
    def __init__(self, payload: Payload) -> None:
        self._compiler = Compiler(payload.schema)

    def of(self, member: Member) -> str | None:
        """A default as JSON; none for null, which is what is missing anyway."""
        if member.default is None:
            return None
        read = self._compiler.read(member.value, json_value=True)
        try:
            content = read(Cursor(member.default, len(member.default) + 1))
        except StoppedAtError:
            # Avro can say it, but the lake cannot hold it
            return None
        return None if content is None else json.dumps(content)

    def inside(self, value: Value, path: str) -> Iterator[tuple[str, str]]:
        """The defaults of the fields below a value, by path."""
        match value.kind:
            case Kind.LIST | Kind.MAP if value.item is not None:
                step = "element" if value.kind is Kind.LIST else "value"
                yield from self.inside(value.item, _join(path, step))
            case Kind.UNION:
                for branch in value.branches:
                    below = path if value.plain else _join(path, branch.member)
                    yield from self.inside(branch.value, below)
            case Kind.STRUCT:
                for member in value.shown:
                    below = _join(path, member.name)
                    text = self.of(member)
                    if text is not None:
                        yield below, text
                    yield from self.inside(member.value, below)


def _join(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step
