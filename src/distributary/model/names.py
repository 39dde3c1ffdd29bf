"""Turns names from outside into names of tables and folders, and into printable text.

A table name is the template with the value of each field filled in, in lower case, with `_` for all
characters other than letters and digits: `silver_chess`. Several types may map to the same name:
the first type to claim it gets it (`engine/planning/table_names.py`). The others, and values that
are not readable, get digits of their SHA-256: `silver_chess_x6a1f03c2d9`.
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

# Checks of type names, which end up in paths, SQL and pages. The rule lists what a name may hold;
# the error codes name the kind of problem.

MAX_TYPE_NAME = 200

_NOT_ENCODABLE = (ErrorCode.TYPE_NAME_EMPTY, ErrorCode.TYPE_NAME_TOO_LONG)
_MARKUP = re.compile(r"[<>&]")
_PATH = re.compile(r"[\\\x00]|\.\.")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:", re.ASCII)
# the line separators of Unicode end a line just as a newline does
_TEXT = re.compile("[\"'`;\x01-\x1f\x7f-\x9f\u2028\u2029]|--")
_SAFE = re.compile(r"[A-Za-z0-9_.:@$#+,=/ -]+", re.ASCII)
_SIGNS = frozenset(". :@$#+,=/")
_CATEGORIES = frozenset(["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd", "Nl", "Pc", "Pd"])
# these characters are letters or marks by category, but invisible: two names would look alike
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$", "clock$"]
    + [f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³"]
)


def check_type_name(name: str, *, longest: int = MAX_TYPE_NAME) -> ErrorCode | None:
    """Return the reason to dead-letter a record with this type name; None for a valid name."""
    if not name.strip():
        return ErrorCode.TYPE_NAME_EMPTY
    if len(name) > longest:
        return ErrorCode.TYPE_NAME_TOO_LONG
    # markup is checked before paths: the slash of a closing tag does not make a path
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
    """Return the reason to refuse a type name; unless `strict`, only names without an encoding."""
    code = check_type_name(name, longest=longest)
    return code if strict or code in _NOT_ENCODABLE else None


def casefold_key(name: str) -> str:
    """Return a key, equal for names that some file system, catalog or reader cannot tell apart."""
    folded = unicodedata.normalize("NFKC", name).upper().casefold()
    # Java also folds the dotted capital I to i
    return unicodedata.normalize("NFKC", folded).replace("i\u0307", "i")


def is_device(name: str) -> bool:
    """Return true when Windows reads the name as a device, with or without an extension."""
    return name.partition(".")[0].strip(" ").lower() in _DEVICES


def _is_path(name: str) -> bool:
    """Return true when a slash does more than separate words, as in `video/play`.

    The address of a type, `https://example.com/created`, is not a path either.
    """
    first, *others = _SCHEME.sub("", name, count=1).split("/")
    if not others:
        return False
    empty = not all(part.strip(". ") for part in (first, *others))
    return empty or any(map(is_device, (first, *others))) or _DRIVE.fullmatch(first) is not None


def _is_harmless(name: str) -> bool:
    """Return true when a name holds only visible letters, digits and known signs."""
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
    """Possible names for one table, in order of preference."""

    plain: str
    """The readable name, which other types may also map to; empty when there is none."""
    exact: str
    """The name that no other values map to: each value is spelled as it is, a dot as `__`, and all
    values can be read back from it. For `{database}_{table}`, `shop` + `order_items` has one, and
    `my_shop` + `orders` has none, because it would read as `my` + `shop_orders`."""
    former: str
    """The readable name of earlier versions, which wrote a dot as `__`; existing lakes keep it."""
    readable: str
    digest: str
    reserved: frozenset[str]

    def marked(self) -> Iterator[str]:
        """Yield names with ten and more digits of the digest, to resolve collisions."""
        body = self.readable if self.readable[:1].isalpha() else "t_" + self.readable.lstrip("_")
        for digits in range(_DIGITS, len(self.digest) + 1):
            mark = f"_x{self.digest[:digits]}"
            name = body[: MAX_TABLE_NAME - len(mark)].rstrip("_") + mark
            if not _is_reserved(name.lower(), self.reserved):
                yield name

    @property
    def first(self) -> str:
        """Return the name to use in a lake where it is free."""
        return self.plain or next(self.marked())

    @property
    def alone(self) -> str:
        """Return the name to use where no record of taken names is kept."""
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
    """Return the possible names of a table: `propose("silver_{type}", type="chess")`.

    `reserved` holds table names that are taken, besides `dead_letters`. `endings` are suffixes that
    the caller appends for further tables: with `_log`, no table is named like the log of another
    one.
    """
    literals, keys = _parsed(template, prefix)
    for key in keys:
        if key not in fields:
            raise _refused(template, f"it uses {{{key}}}; it may use {', '.join(sorted(fields))}")
    values = [fields[key] for key in keys]

    def usable(spelled: Sequence[str], *, lettered: bool) -> str:
        """Fill the template with these values; return empty for an invalid or reserved name."""
        name = _filled(literals, spelled) if all(spelled) else ""
        if name and _is_no_identifier(name):
            name = f"t_{name}" if lettered else ""
        taken = name and _is_taken(name, reserved, endings)
        return "" if taken or len(name) > MAX_TABLE_NAME else name

    is_exact = all(map(_EXACT.fullmatch, values))
    dotted = [value.replace(".", "__") if is_exact else _dotted(value) for value in values]
    former = usable(dotted, lettered=False)
    return Proposal(
        plain=usable([_spelled(value) for value in values], lettered=True),
        exact=former if is_exact and _reads_back(dotted, literals[1:]) else "",
        former=former,
        readable=_filled(literals, [_slug(value) for value in values]),
        # JSON separates the values: ["a_b", "c"] and ["a", "b_c"] are different texts
        digest=hashlib.sha256(json.dumps(values).encode()).hexdigest(),
        reserved=reserved,
    )


def quote_sql(identifier: str) -> str:
    """Quote an identifier for Spark SQL with backticks."""
    return "`" + identifier.replace("`", "``") + "`"


def literal_sql(text: str) -> str:
    """Quote a string for Spark SQL, with quotes, backslashes and `${...}` escaped."""
    plain = (c if c.isascii() and (c.isalnum() or c == " ") else _escaped(c) for c in text)
    return f"'{''.join(plain)}'"


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _reads_back(values: Sequence[str], following: Sequence[str]) -> bool:
    """Return true when the text after each value occurs first at the value's end."""
    return all(
        (value + after).find(after) == len(value)
        for value, after in zip(values[:-1], following[:-1], strict=True)
    )


def _is_no_identifier(name: str) -> bool:
    """Return true when SQL or a file system gives the name another meaning."""
    folded = name.lower()
    return folded[0].isdigit() or folded in _SQL_WORDS or is_device(folded)


def _is_taken(name: str, reserved: frozenset[str], endings: tuple[str, ...]) -> bool:
    """Return true when a name is reserved, has a reserved ending, or looks like a marked name."""
    folded = name.lower()
    return (
        is_marked(folded)
        or _is_reserved(folded, reserved)
        or folded.endswith(tuple(ending.lower() for ending in endings))
    )


def is_marked(name: str) -> bool:
    """Return true when a table's name ends with digits of a digest."""
    return _MARKED.search(name) is not None


def _is_reserved(folded: str, reserved: frozenset[str]) -> bool:
    return folded == DEAD_LETTERS or folded in {taken.lower() for taken in reserved}


def _spelled(value: str) -> str:
    """Spell a value as part of a name; empty when it is unsafe or letters would be lost."""
    folded = value.casefold()
    lost = not folded.isascii() and any(c.isalnum() and not _slug(c) for c in folded)
    return "" if lost or check_type_name(value) is not None else _slug(folded)


def _dotted(value: str) -> str:
    """Spell a value as earlier versions did, with a dot as `__`."""
    parts = (re.sub(r"[^a-z0-9]+", "_", part).strip("_") for part in value.lower().split("."))
    return "__".join(filter(None, parts)) if _READABLE.fullmatch(value) else ""


def _slug(value: str) -> str:
    """Return the readable part of a value: letters without accents, everything else as `_`."""
    plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


def _filled(literals: Sequence[str], values: Sequence[str]) -> str:
    """Insert values between the literal texts of a template."""
    pairs = zip(values, literals[1:], strict=True)
    return literals[0] + "".join(value + literal for value, literal in pairs)


@lru_cache(maxsize=256)
def _parsed(template: str, prefix: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the literal texts around the fields (one more than fields), and the field names."""
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
        raise _refused(
            template, "it has no field such as {type}: all records would share one table"
        )
    if not all(map(_LITERAL.fullmatch, literals)) or literals[0].startswith("_"):
        raise _refused(
            template,
            "its text outside of fields may hold letters, digits and _, and must not begin with _",
        )
    if sum(map(len, literals)) > MAX_TABLE_NAME // 2:
        raise _refused(
            template, f"its text outside of fields is longer than {MAX_TABLE_NAME // 2} characters"
        )
    return tuple(literals), tuple(keys)


def _refused(template: str, evidence: str) -> ConfigError:
    return ConfigError(
        "a table name template cannot be used",
        where=f"template {template!r}",
        evidence=evidence,
        next_step="write a template such as silver_{type} or {database}_{table}",
    )


# Names of Avro records and protobuf messages as parts of a table name: `OrderItem` becomes
# `order_item`. Names in other styles keep a leading dot, so that `propose` appends a digest.

_PASCAL = re.compile(r"(?:[A-Z][a-z0-9]+)+")
_SPACE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")


def spelled_record(full_name: str) -> str:
    """Return the name of a record without its namespace, in lower case with underscores."""
    short = full_name.rpartition(".")[2]
    return _snake(short) if _PASCAL.fullmatch(short) else f".{short}"


def spelled_type(full_name: str) -> str:
    """Return the full name with its last part in snake case: `shop.v1.order_item`."""
    space, _, short = full_name.rpartition(".")
    parts = space.split(".") if space else []
    if not _PASCAL.fullmatch(short) or not all(map(_SPACE.fullmatch, parts)):
        return f".{full_name}"
    return f"{space}.{_snake(short)}" if space else _snake(short)


def _snake(pascal: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", pascal).lower()


# Folders of partitions. The values come from records, so every path is made safe.
#
# A Delta table keeps its partition values in its log, but Polars reads them from the path: a value
# that Hive's convention cannot spell gets no folder. A plain Parquet table keeps the values in its
# files, because readers guess the types of folder names; its folders are labels to find files by.

LONGEST_FOLDER = 255
"""The largest number of bytes in one part of a path, on common file systems."""
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
NULL_LABEL = "null"
OTHER_LABEL = "other"
"""The label of all partitions beyond the number that one file's rows may be divided into."""

_PLAIN = re.compile(r"-?[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_TAKEN = re.compile(rf"{NULL_LABEL}|{OTHER_LABEL}|.*\.[0-9a-f]{{12}}")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]+")


def hive_folder(column: str, value: str | None) -> str | None:
    """Return `country=de`, escaped; None when no folder name works in every engine."""
    # Spark writes a zero byte unescaped, which no file system accepts
    if value is not None and (value == HIVE_NULL or "\0" in value):
        return None
    escaped = HIVE_NULL if value is None else quote(value, safe="")
    folder = f"{quote(column, safe='')}={escaped}"
    return folder if len(folder) <= LONGEST_FOLDER else None


def label_columns(partition_by: Sequence[str]) -> dict[str, str]:
    """Return the label of each partition column of a plain Parquet table: `by_date` for `_date`.

    A label differs from its column, which is in the files, and never begins with `_`, because
    pandas skips such folders silently.
    """
    short = [column.lstrip("_") for column in partition_by]
    unique = len(set(short)) == len(short) and all(short)
    names = short if unique else list(partition_by)
    return {column: _plain(f"by_{name}") for column, name in zip(partition_by, names, strict=True)}


def label_folder(label_column: str, value: str | None) -> str:
    """Return `by_country=de`: readable, safe, and never shared by two values."""
    return f"{label_column}={NULL_LABEL if value is None else _plain(value, reserved=_TAKEN)}"


def _plain(text: str, *, reserved: re.Pattern[str] | None = None) -> str:
    """Return a text that is safe as a folder name; others get a digest."""
    if _PLAIN.fullmatch(text) and not (reserved and reserved.fullmatch(text)):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_NOT_PLAIN.sub('-', text[:200]).strip('-_')[:60] or 'x'}.{digest}"


# Names and texts from outside, made safe for messages and file names.


def printable(text: str, *, longest: int = 300) -> str:
    """Return a text from outside on one line: cut, and safe for a terminal."""
    return one_line(text if len(text) <= longest else f"{text[: longest - 1]}…")


def one_line(text: str) -> str:
    """Escape the characters of a text that end a line or move a cursor."""
    if text.isprintable():
        return text
    escaped = (c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)
    return "".join(c if c.isprintable() else e for c, e in zip(text, escaped, strict=True))


def quoted(name: str) -> str:
    """Quote a name for SQL, as DuckDB, PostgreSQL and Trino do."""
    return '"' + name.replace('"', '""') + '"'


def subject_folder(name: str) -> str:
    """Return a readable folder name for any text; two texts never share one on any file system.

    A plain lower-case name is used unchanged. Any other text becomes its readable part, `~`, which
    no plain name has, and a digest of the whole.
    """
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", name):
        return name
    readable = re.sub(r"[^a-z0-9._-]+", "_", name[:60].lower()).strip("._")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{readable}~{digest}"
