"""One function from names of the outside to names that a table could have: readable and safe.

A table name is the template with each field's value in it, in lower case: `silver_chess`. Several
types may want the same: the first to take it has it (`run/names.py`), and the others have names
that nobody else wants: after as much of the values as is readable, `_x` and ten hexadecimal digits
of their SHA-256, as in `silver_chess_x6a1f03c2d9`. So has a type at once that

- holds anything but letters, digits and `_ . -` and blanks of ASCII; a dot is written `__`;
- would get a name that looks as if it had such digits, is too long, begins with a digit, or is a
  word with a meaning of its own: a reserved table name, a device of Windows, a word of SQL.

A plain name is exact if it is given to no other values. Where there is no lake to write down who
has which name, only these are plain:

- each value consists of `a-z 0-9 _` and begins with a letter or a digit, and holds no `__`; or of
  such parts with dots between them, none of which ends with `_`;
- the values can be read back from left to right, that is: no value but the last contains the text
  that follows it in the template. Of `{database}_{table}`, `shop` + `order_items` is exact and
  `my_shop` + `orders` is not, for it would read as `my` + `shop_orders`.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from distributary.errors import ConfigError
from distributary.route.type_names import is_device

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
    exact: bool
    """Whether no other values get the plain name."""
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
        return self.plain if self.exact else next(self.marked())


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

    `reserved` are table names that are taken, `dead_letters` is always one of them. `endings` are
    what the caller appends to make further names: with `_log` no table is called like the log of
    another. Values that the template does not mention do not count.
    """
    literals, keys = _parsed(template, prefix)
    values = [_value(template, fields, key) for key in keys]
    exact = all(map(_EXACT.fullmatch, values))
    spelled = [value.replace(".", "__") for value in values] if exact else _spelled(values)
    plain = _filled(literals, spelled) if all(spelled) else ""
    if not plain or len(plain) > MAX_TABLE_NAME or _means_something(plain, reserved, endings):
        plain = ""
    return Proposal(
        plain=plain,
        exact=bool(plain) and exact and _reads_back(spelled, literals[1:]),
        readable=_filled(literals, [_slug(value) for value in values]),
        # JSON keeps the values apart: ["a_b", "c"] and ["a", "b_c"] are different texts
        digest=hashlib.sha256(json.dumps(values).encode()).hexdigest(),
        reserved=reserved,
    )


def quote_sql(identifier: str) -> str:
    """One identifier for Spark SQL, in backticks."""
    return "`" + identifier.replace("`", "``") + "`"


def _reads_back(values: Sequence[str], following: Sequence[str]) -> bool:
    """Whether the first place where a value's following text occurs is always the value's end."""
    return all(
        (value + after).find(after) == len(value)
        for value, after in zip(values[:-1], following[:-1], strict=True)
    )


def _means_something(name: str, reserved: frozenset[str], endings: tuple[str, ...]) -> bool:
    folded = name.lower()
    return (
        bool(_MARKED.search(folded))
        or folded[0].isdigit()
        or folded in _SQL_WORDS
        or is_device(folded)
        or _is_reserved(folded, reserved)
        or folded.endswith(tuple(ending.lower() for ending in endings))
    )


def _is_reserved(folded: str, reserved: frozenset[str]) -> bool:
    return folded == DEAD_LETTERS or folded in {taken.lower() for taken in reserved}


def _spelled(values: Sequence[str]) -> list[str]:
    """Values that only need other letters to be names; empty where one needs more than that."""
    return [_parts(value.lower()) if _READABLE.fullmatch(value) else "" for value in values]


def _parts(value: str) -> str:
    parts = (re.sub(r"[^a-z0-9]+", "_", part).strip("_") for part in value.split("."))
    return "__".join(filter(None, parts))


def _slug(value: str) -> str:
    """What is readable of a value: letters without their accents, everything else as `_`."""
    plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


def _filled(literals: Sequence[str], values: Sequence[str]) -> str:
    parts = [literals[0]]
    for value, literal in zip(values, literals[1:], strict=True):
        parts += [value, literal]
    return "".join(parts)


def _value(template: str, fields: Mapping[str, str], key: str) -> str:
    if key not in fields:
        raise _refused(template, f"it asks for {{{key}}}; there is {', '.join(sorted(fields))}")
    return fields[key]


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
