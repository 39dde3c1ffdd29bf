"""Whole records are encrypted so that only their key opens them, the same way each time."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from distributary.model.record import HEADER
from distributary.shape.raw_encryption import (
    WrongKeyError,
    decrypted,
    encrypted,
    encryption_key,
)

CONTENTS, PLACES = ("value", "headers"), ("topic", "offset")
KEY = b"a key of sixteen characters"
BYTES = st.none() | st.binary(max_size=40)
HEADERS = st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=4), "value": BYTES}))


def table(rows: list[tuple[bytes | None, list[dict[str, object]] | None]]) -> pa.Table:
    return pa.table(
        {
            "topic": pa.repeat("t", len(rows)),
            "offset": pa.array(range(len(rows)), pa.int64()),
            "value": pa.array([value for value, _ in rows], pa.binary()),
            "headers": pa.array([headers for _, headers in rows], pa.list_(HEADER)),
        }
    )


@given(st.lists(st.tuples(BYTES, HEADERS), max_size=5))
def test_the_key_opens_what_it_closed(
    rows: list[tuple[bytes | None, list[dict[str, object]] | None]],
) -> None:
    plain = table(rows)
    sealed = encrypted(plain, CONTENTS, PLACES, KEY)
    assert sealed == encrypted(plain, CONTENTS, PLACES, KEY)
    assert decrypted(sealed, CONTENTS, KEY) == plain
    assert sealed.schema == plain.schema
    assert sealed["value"].null_count == plain["value"].null_count


def test_equal_values_of_two_records_differ_and_headers_keep_their_names() -> None:
    headers = [{"key": "a", "value": b"same"}, {"key": "b", "value": None}]
    sealed = encrypted(table([(b"same", headers), (b"same", headers)]), CONTENTS, PLACES, KEY)
    values = sealed["value"].to_pylist()
    named = [[(h["key"], h["value"]) for h in row] for row in sealed["headers"].to_pylist()]
    assert [[name for name, _ in row] for row in named] == [["a", "b"], ["a", "b"]]
    assert len({*values, named[0][0][1], named[1][0][1]}) == 4
    assert not any(b"same" in value for value in values)


def test_a_value_is_nonce_text_and_tag_for_other_programs() -> None:
    data = encrypted(table([(b"text", None)]), CONTENTS, PLACES, KEY)["value"][0].as_py()
    assert AESGCM(encryption_key(KEY)).decrypt(data[:12], data[12:], None) == b"text"


@pytest.mark.parametrize("change", [lambda d: d[:-1] + bytes([d[-1] ^ 1]), lambda d: d[:5]])
def test_changed_values_and_other_keys_are_refused(change: Callable[[bytes], bytes]) -> None:
    sealed = encrypted(table([(b"text", None)]), CONTENTS, PLACES, KEY)
    with pytest.raises(WrongKeyError):
        decrypted(sealed, CONTENTS, KEY + b".")
    changed = pa.array([change(sealed["value"][0].as_py())], pa.binary())
    with pytest.raises(WrongKeyError):
        decrypted(sealed.set_column(2, "value", changed), CONTENTS, KEY)
