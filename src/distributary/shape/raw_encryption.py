"""Encryption of whole records in bronze and in dead letters, for lakes whose tables are masked.

Each value is AES-256-GCM: 12 bytes of nonce, the text, 16 bytes of tag. That is what `aes_decrypt`
of Spark reads. The nonce is a keyed hash of the record's coordinates and the value: a batch that is
staged again gives the same bytes, and equal values of two records differ.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_DIGEST = "sha256"
_NONCE = 12


class WrongKeyError(ValueError):
    """An encrypted value that this key does not open, or that was changed."""


def encryption_key(mask_key: bytes) -> bytes:
    """Return the key of whole records: 32 bytes, derived from `masking.key`."""
    return hmac.digest(mask_key, b"distributary: whole records", _DIGEST)


def encrypted(
    rows: pa.Table, contents: Sequence[str], coordinates: Sequence[str], mask_key: bytes
) -> pa.Table:
    """Return rows with encrypted contents; null stays null, and headers keep their names."""
    key = encryption_key(mask_key)
    nonce_key = hmac.digest(mask_key, b"distributary: nonces of whole records", _DIGEST)
    columns = [rows.column(name).to_pylist() for name in coordinates]
    places = ["\0".join(map(str, place)).encode() for place in zip(*columns, strict=True)]
    cipher = AESGCM(key)

    def seal(name: str, place: int, text: bytes) -> bytes:
        # a record has several values, and headers may repeat their names
        about = b"%s\0%s\0%d\0" % (name.encode(), places[place], len(text))
        nonce = hmac.digest(nonce_key, about + text, _DIGEST)[:_NONCE]
        return nonce + cipher.encrypt(nonce, text, None)

    return _changed(rows, {name: partial(seal, name) for name in contents})


def decrypted(rows: pa.Table, contents: Sequence[str], mask_key: bytes) -> pa.Table:
    """Return rows with the contents that `encrypted` was given. Raises WrongKeyError."""
    cipher = AESGCM(encryption_key(mask_key))

    def unseal(place: int, data: bytes) -> bytes:
        try:
            return cipher.decrypt(data[:_NONCE], data[_NONCE:], None)
        except (InvalidTag, ValueError) as error:
            raise WrongKeyError("the key does not open the contents of a record") from error

    return _changed(rows, dict.fromkeys(contents, unseal))


def _changed(rows: pa.Table, changes: Mapping[str, Callable[[int, bytes], bytes]]) -> pa.Table:
    """Change the bytes of some columns; of headers those of their values."""
    for name, change in changes.items():
        at = rows.schema.get_field_index(name)
        field = rows.schema.field(at)
        values = rows.column(at).to_pylist()
        one: Callable[..., object] = _headers if pa.types.is_list(field.type) else _value
        new = [one(number, value, change) for number, value in enumerate(values)]
        rows = rows.set_column(at, field, pa.array(new, field.type))
    return rows


def _value(number: int, value: bytes | None, change: Callable[[int, bytes], bytes]) -> bytes | None:
    return None if value is None else change(number, value)


def _headers(
    number: int,
    headers: Sequence[Mapping[str, object]] | None,
    change: Callable[[int, bytes], bytes],
) -> list[dict[str, object]] | None:
    if headers is None:
        return None
    return [
        {**header, "value": change(number, value) if isinstance(value, bytes) else value}
        for header in headers
        for value in (header["value"],)
    ]
