"""Names of Avro records and protobuf messages as parts of a table name.

`OrderItem` reads as `order_item` in a table's name. That is injective because names that are not
written so give themselves away: they keep a leading dot, for which `table_name` appends a digest.
"""

from __future__ import annotations

import re

_PASCAL = re.compile(r"(?:[A-Z][a-z0-9]+)+")
_SPACE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")


def spelled_record(full_name: str) -> str:
    """The record's own name, without its namespace, in lower case with underscores."""
    short = full_name.rpartition(".")[2]
    return _snake(short) if _PASCAL.fullmatch(short) else f".{short}"


def spelled_type(full_name: str) -> str:
    """The whole name: `shop.v1.OrderItem` is `shop.v1.order_item`."""
    space, _, short = full_name.rpartition(".")
    parts = space.split(".") if space else []
    if not _PASCAL.fullmatch(short) or not all(map(_SPACE.fullmatch, parts)):
        return f".{full_name}"
    return f"{space}.{_snake(short)}" if space else _snake(short)


def _snake(pascal: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", pascal).lower()
