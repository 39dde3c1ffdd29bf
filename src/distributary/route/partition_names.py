"""Folders of partitions. The values come from records: whatever they are, the path is safe.

A Delta table keeps its partition values in its log, and its folders are a convention; but Polars
reads the values out of the path, so the convention is kept to the letter, and a value that it
cannot spell has no folder. In a plain Parquet table the values are in the files, because readers
of folders guess types (`007` is a number to them), know no difference between null and empty, and
pandas cannot mix null with anything. There a folder has a label that only helps to find files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from urllib.parse import quote

LONGEST_FOLDER = 255
"""Bytes in one part of a path, on the file systems there are."""
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
NULL_LABEL = "null"
OTHER_LABEL = "other"
"""The label of all partitions beyond the number that one file's rows may be spread over."""

_PLAIN = re.compile(r"-?[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_HASHED = re.compile(r".*\.[0-9a-f]{12}")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]+")


def hive_folder(column: str, value: str | None) -> str | None:
    """`country=de`, escaped; None where the value has no folder that every engine understands."""
    # Spark writes a zero byte as it is, which no file system takes
    if value is not None and (value == HIVE_NULL or "\0" in value):
        return None
    escaped = HIVE_NULL if value is None else quote(value, safe="")
    folder = f"{quote(column, safe='')}={escaped}"
    return folder if len(folder) <= LONGEST_FOLDER else None


def label_columns(partition_by: Sequence[str]) -> dict[str, str]:
    """What readers of a plain Parquet table see beside each column: `by_date` for `_date`.

    Not the column's own name, which is in the files, and never one that begins with `_`: pandas
    passes over such folders without a word.
    """
    short = [column.lstrip("_") for column in partition_by]
    unique = len(set(short)) == len(short) and all(short)
    names = short if unique else list(partition_by)
    return {column: _named(f"by_{name}") for column, name in zip(partition_by, names, strict=True)}


def label_folder(label_column: str, value: str | None) -> str:
    """`by_country=de`: readable, safe, and never shared by two values."""
    return f"{label_column}={NULL_LABEL if value is None else _label(value)}"


def _label(value: str) -> str:
    taken = value in (NULL_LABEL, OTHER_LABEL) or _HASHED.fullmatch(value)
    return value if _PLAIN.fullmatch(value) and not taken else _hashed(value)


def _named(column: str) -> str:
    return column if _PLAIN.fullmatch(column) else _hashed(column)


def _hashed(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_NOT_PLAIN.sub('-', text[:200]).strip('-_')[:60] or 'x'}.{digest}"
