"""Events in Avro: read by the decoder of Avro payloads, without Avro's own logical types."""

from __future__ import annotations

import pyarrow as pa

from distributary.decode.avro import AvroDecoder
from distributary.decode.base import DecodeLimits
from distributary.decode.debezium_schema import avro_type, unusable
from distributary.decode.expansion import Expansion
from distributary.model.decoded import Decoded


class ConnectAvro:
    """Decodes payloads of one schema."""

    def __init__(self, body: bytes, message: str, limits: DecodeLimits) -> None:
        self.type, bare = avro_type(body)
        self._inner = AvroDecoder(bare, message, limits)
        if len(self._inner.columns) != len(self.type.fields):
            raise unusable("it is no record, or nests too deep")

    @property
    def raw(self) -> tuple[pa.DataType, ...]:
        """The types of the decoded fields, in the schema's order."""
        return tuple(column.type for column in self._inner.columns)

    @property
    def expansion(self) -> Expansion:
        """How large events become."""
        return self._inner.expansion

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode an array without nulls; what cannot be read is in `failed`."""
        return self._inner.decode(payloads)
