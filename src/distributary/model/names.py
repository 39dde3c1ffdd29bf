"""From names of the outside to names that a table, a folder or a message can have.

A table name is the template with each field's value in it, in lower case, with `_` for all that is
neither letter nor digit: `silver_chess`. Several types may want the same: the first to take it has
it (`engine/names.py`). The others, and values that are not readable, get digits of their SHA-256:
`silver_chess_x6a1f03c2d9`.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from distributary.errors import ConfigError, ErrorCode

# Which type names are accepted: they end up in paths, SQL and pages. The rule is what a name may
# hold, not what it may not; the codes say what kind of trouble a name is.

MAX_TYPE_NAME = 200

_NOT_ENCODABLE = (ErrorCode.TYPE_NAME_EMPTY, ErrorCode.TYPE_NAME_TOO_LONG)
_MARKUP = re.compile(r"[<>&]")
_PATH = re.compile(r"[\\\x00]|\.\.")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:", re.ASCII)
# the line separators of Unicode end a line as much as a newline does
_TEXT = re.compile("[\"'`;\x01-\x1f\x7f-\x9f\u2028\u2029]|--")
_SAFE = re.compile(r"[A-Za-z0-9_.:@$#+,=/ -]+", re.ASCII)
_SIGNS = frozenset(". :@$#+,=/")
_CATEGORIES = frozenset(["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd", "Nl", "Pc", "Pd"])
# letters and marks by category, but invisible: two names would look alike
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$", "clock$"]
    + [f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³"]
)


def check_type_name(name: str, *, longest: int = MAX_TYPE_NAME) -> ErrorCode | None:
    """The reason to dead-letter a record of this type name; None for a name that is fine."""
    if not name.strip():
        return ErrorCode.TYPE_NAME_EMPTY
    if len(name) > longest:
        return ErrorCode.TYPE_NAME_TOO_LONG
    # markup before path: the slash of a closing tag does not make it a path
    if _MARKUP.search(name):
        return ErrorCode.TYPE_NAME_UNSAFE_MARKUP
    if _PATH.search(name) or _is_path(name):
        return ErrorCode.TYPE_NAME_UNSAFE_PATH
    if _TEXT.search(name):
        return ErrorCode.TYPE_NAME_UNSAFE_TEXT
    if not name.strip(". ") or is_device(name):
        return ErrorCode.TYPE_NAME_RESERVED
    if not _SAFE.fullmatch(name) and not _is_harmless(name):
        return ErrorCode.TYPE_NAME_UNSAFE_SYMBOL
    return None


def refused_type_name(name: str, *, strict: bool, longest: int = MAX_TYPE_NAME) -> ErrorCode | None:
    """The same where names are encoded instead of refused: then only two kinds have no encoding."""
    code = check_type_name(name, longest=longest)
    return code if strict or code in _NOT_ENCODABLE else None


def casefold_key(name: str) -> str:
    """Equal for names that some file system, catalog or reader takes for one and the same."""
    folded = unicodedata.normalize("NFKC", name).upper().casefold()
    # Java takes the dotted capital I for an i, too
    return unicodedata.normalize("NFKC", folded).replace("i\u0307", "i")


def is_device(name: str) -> bool:
    """Whether Windows takes the name for a device, with or without an extension."""
    return name.partition(".")[0].strip(" ").lower() in _DEVICES


def _is_path(name: str) -> bool:
    """Return whether a slash does anything but part words, as those of `video/play` do.

    The address of a type, `https://example.com/created`, is no path either.
    """
    first, *others = _SCHEME.sub("", name, count=1).split("/")
    if not others:
        return False
    empty = not all(part.strip(". ") for part in (first, *others))
    return empty or any(map(is_device, (first, *others))) or _DRIVE.fullmatch(first) is not None


def _is_harmless(name: str) -> bool:
    known = all(c in _SIGNS or unicodedata.category(c) in _CATEGORIES for c in name)
    return known and not _INVISIBLE.search(name)


MAX_TABLE_NAME = 120
DEAD_LETTERS = "dead_letters"

_DIGITS = 10
_EXACT = re.compile(r"(?!.*__)(?:[a-z0-9](?:[a-z0-9_]*[a-z0-9])?\.)*[a-z0-9][a-z0-9_]*", re.ASCII)
_READABLE = re.compile(r"[A-Za-z0-9_. -]+", re.ASCII)
_LITERAL = re.compile(r"[A-Za-z0-9_]*", re.ASCII)
_MARKED = re.compile(r"_x[0-9a-f]{10,}$", re.ASCII)
_SQL_WORDS = frozenset(
    """
    all and any as between both by case cast check collate column constraint create cross
    current_date current_time current_timestamp current_user default delete desc describe distinct
    drop else end escape except exists false fetch filter for foreign from full grant group having
    in inner insert intersect interval into is join lateral leading left like limit merge minus
    natural not null offset on only or order outer overlaps primary references right select
    session_user set show some table then time to trailing true truncate union unique unknown update
    user using values view when where with
    """.split()
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Names for one table, in the order in which they are wanted."""

    plain: str
    """The readable name, which others may want, too; empty where there is none."""
    exact: str
    """The name that no other values get: each is spelled as it is, a dot as `__`, and all can be
    read back. Of `{database}_{table}`, `shop` + `order_items` has one, `my_shop` + `orders` none:
    it would read as `my` + `shop_orders`."""
    former: str
    """The readable name of versions that wrote a dot as `__`; lakes keep it."""
    readable: str
    digest: str
    reserved: frozenset[str]

    def marked(self) -> Iterator[str]:
        """Names with digits, ten and more: whoever makes up two values for one name gets two."""
        body = self.readable if self.readable[:1].isalpha() else "t_" + self.readable.lstrip("_")
        for digits in range(_DIGITS, len(self.digest) + 1):
            mark = f"_x{self.digest[:digits]}"
            name = body[: MAX_TABLE_NAME - len(mark)].rstrip("_") + mark
            if not _is_reserved(name.lower(), self.reserved):
                yield name

    @property
    def first(self) -> str:
        """The name in a lake in which nobody has it yet."""
        return self.plain or next(self.marked())

    @property
    def alone(self) -> str:
        """The name where nobody writes down which names are taken."""
        return self.exact or next(self.marked())


@lru_cache(maxsize=1 << 12)
def propose(
    template: str,
    /,
    *,
    prefix: str = "",
    reserved: frozenset[str] = frozenset(),
    endings: tuple[str, ...] = (),
    **fields: str,
) -> Proposal:
    """The names of a table for these values: `propose("silver_{type}", type="chess")`.

    `reserved` are table names that are taken, beside `dead_letters`. `endings` are what the caller
    appends to make further names: with `_log` no table is called like the log of another.
    """
    literals, keys = _parsed(template, prefix)
    for key in keys:
        if key not in fields:
            raise _refused(template, f"it asks for {{{key}}}; there is {', '.join(sorted(fields))}")
    values = [fields[key] for key in keys]

    def usable(spelled: Sequence[str], *, lettered: bool) -> str:
        """The template with these values; empty where that is no name, or one of another."""
        name = _filled(literals, spelled) if all(spelled) else ""
        if name and _is_no_identifier(name):
            name = f"t_{name}" if lettered else ""
        taken = name and _means_something(name, reserved, endings)
        return "" if taken or len(name) > MAX_TABLE_NAME else name

    as_is = all(map(_EXACT.fullmatch, values))
    dotted = [value.replace(".", "__") if as_is else _dotted(value) for value in values]
    former = usable(dotted, lettered=False)
    return Proposal(
        plain=usable([_spelled(value) for value in values], lettered=True),
        exact=former if as_is and _reads_back(dotted, literals[1:]) else "",
        former=former,
        readable=_filled(literals, [_slug(value) for value in values]),
        # JSON keeps the values apart: ["a_b", "c"] and ["a", "b_c"] are different texts
        digest=hashlib.sha256(json.dumps(values).encode()).hexdigest(),
        reserved=reserved,
    )


def quote_sql(identifier: str) -> str:
    """One identifier for Spark SQL, in backticks."""
    return "`" + identifier.replace("`", "``") + "`"


def literal_sql(text: str) -> str:
    """A string in Spark SQL, where quotes, backslashes and `${...}` all mean something."""
    plain = (c if c.isascii() and (c.isalnum() or c == " ") else _escaped(c) for c in text)
    return f"'{''.join(plain)}'"


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _reads_back(values: Sequence[str], following: Sequence[str]) -> bool:
    """Whether the first place where a value's following text occurs is always the value's end."""
    return all(
        (value + after).find(after) == len(value)
        for value, after in zip(values[:-1], following[:-1], strict=True)
    )


def _is_no_identifier(name: str) -> bool:
    """Whether SQL or a file system takes the name for something else."""
    folded = name.lower()
    return folded[0].isdigit() or folded in _SQL_WORDS or is_device(folded)


def _means_something(name: str, reserved: frozenset[str], endings: tuple[str, ...]) -> bool:
    folded = name.lower()
    return (
        is_marked(folded)
        or _is_reserved(folded, reserved)
        or folded.endswith(tuple(ending.lower() for ending in endings))
    )


def is_marked(name: str) -> bool:
    """Whether a table's name ends with digits of its owner's."""
    return _MARKED.search(name) is not None


def _is_reserved(folded: str, reserved: frozenset[str]) -> bool:
    return folded == DEAD_LETTERS or folded in {taken.lower() for taken in reserved}


def _spelled(value: str) -> str:
    """A value as people would write it in a name; empty where it is unsafe or would lose letters.

    Such values are not told apart by what is left of them.
    """
    folded = value.casefold()
    lost = not folded.isascii() and any(c.isalnum() and not _slug(c) for c in folded)
    return "" if lost or check_type_name(value) is not None else _slug(folded)


def _dotted(value: str) -> str:
    """The same, as versions did that wrote a dot as `__`."""
    parts = (re.sub(r"[^a-z0-9]+", "_", part).strip("_") for part in value.lower().split("."))
    return "__".join(filter(None, parts)) if _READABLE.fullmatch(value) else ""


def _slug(value: str) -> str:
    """What is readable of a value: letters without their accents, everything else as `_`."""
    plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


def _filled(literals: Sequence[str], values: Sequence[str]) -> str:
    pairs = zip(values, literals[1:], strict=True)
    return literals[0] + "".join(value + literal for value, literal in pairs)


@lru_cache(maxsize=256)
def _parsed(template: str, prefix: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts around the fields, one more than there are fields, and the fields' names."""
    literals, keys = [prefix], []
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise _refused(template, str(error)) from error
    for literal, key, spec, conversion in pieces:
        literals[-1] += literal
        if key is None:
            continue
        if not key.isidentifier() or spec or conversion:
            raise _refused(template, f"{{{key}}} is not the plain name of a field")
        keys.append(key)
        literals.append("")
    if not keys:
        raise _refused(template, "it has no field: all records would share one table")
    if not all(map(_LITERAL.fullmatch, literals)) or literals[0].startswith("_"):
        raise _refused(template, "its own text may hold letters, digits and, not in front, _")
    if sum(map(len, literals)) > MAX_TABLE_NAME // 2:
        raise _refused(template, f"its own text is longer than {MAX_TABLE_NAME // 2} characters")
    return tuple(literals), tuple(keys)


def _refused(template: str, evidence: str) -> ConfigError:
    return ConfigError(
        "a table name template cannot be used",
        where=f"template {template!r}",
        evidence=evidence,
        next_step="write a template such as silver_{type} or {database}_{table}",
    )


# Names of Avro records and protobuf messages as parts of a table name: `OrderItem` is `order_item`.
# Names that are not written so keep a leading dot, for which `propose` appends a digest.

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


# Folders of partitions. The values come from records: whatever they are, the path is safe.
#
# A Delta table keeps its partition values in its log, but Polars reads them out of the path: a
# value that the convention cannot spell has no folder. In a plain Parquet table the values are in
# the files, because readers of folders guess types; a folder has a label that helps to find files.

LONGEST_FOLDER = 255
"""Bytes in one part of a path, on the file systems there are."""
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
NULL_LABEL = "null"
OTHER_LABEL = "other"
"""The label of all partitions beyond the number that one file's rows may be spread over."""

_PLAIN = re.compile(r"-?[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_TAKEN = re.compile(rf"{NULL_LABEL}|{OTHER_LABEL}|.*\.[0-9a-f]{{12}}")
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
    return {column: _plain(f"by_{name}") for column, name in zip(partition_by, names, strict=True)}


def label_folder(label_column: str, value: str | None) -> str:
    """`by_country=de`: readable, safe, and never shared by two values."""
    return f"{label_column}={NULL_LABEL if value is None else _plain(value, taken=_TAKEN)}"


def _plain(text: str, *, taken: re.Pattern[str] | None = None) -> str:
    if _PLAIN.fullmatch(text) and not (taken and taken.fullmatch(text)):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_NOT_PLAIN.sub('-', text[:200]).strip('-_')[:60] or 'x'}.{digest}"


# Names and texts from outside, made fit for messages and for file names.


def printable(text: str) -> str:
    """Text on one line, of bounded length, without anything that could move a cursor."""
    shown = text[:300] + ("..." if len(text) > 300 else "")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def folder_name(name: str) -> str:
    """A readable folder name for any text; two texts never share one, whatever the file system.

    A plain lower-case name is its own folder. Any other gets its readable part and, behind a `~`
    that no plain name has, a digest of the whole.
    """
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", name):
        return name
    readable = re.sub(r"[^a-z0-9._-]+", "_", name[:60].lower()).strip("._")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{readable}~{digest}"
