"""The section `shape`: columns and rows that differ from those of the records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr
from pydantic_core import PydanticCustomError

from distributary.config.base import Conflict, Section, Text, Texts, matching
from distributary.config.lake import Tables
from distributary.config.rules.expressions import columns_of, valid_expression
from distributary.config.rules.keys import KeyedTables
from distributary.model.rules.expectation import any_fits
from distributary.model.rules.shape_rule import (
    MaskMethod,
    RawRecords,
    ShapeFunction,
    ShapeRule,
    SqlExpression,
)

Expression = Annotated[
    str, AfterValidator(partial(valid_expression, repeatable=True, constant=True))
]
Condition = Annotated[
    str, AfterValidator(partial(valid_expression, repeatable=True, constant=False))
]
NewColumn = Annotated[
    Text,
    matching(
        r"[^_\W][^\x00-\x1f\x7f]{0,254}",
        "new_column",
        "must be the name of a column: a letter or digit first (a leading underscore is reserved "
        "for the pipeline), 255 characters at most",
    ),
]
MaskText = Annotated[
    Text,
    matching(
        r"hash|token|redact|truncate\([1-9][0-9]{0,3}\)",
        "mask",
        "must be hash, token, redact, or truncate(N) for the first N characters",
    ),
]
FunctionName = Annotated[
    Text,
    matching(
        r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
        "function",
        "must be MODULE:NAME, such as cleaning:clean",
    ),
]
_STEPS = ("where", "set", "function", "mask", "explode", "drop", "keep", "rename")
_NOT_FOR_CHANGES = (
    "cannot be used with cdc: the rows of a database are merged by their keys and columns; shape "
    "them in a view over the table"
)


_SHORTEST_KEY = 16
_WHOLE = ("key", "headers", "raw", "cloudevent")
"""Metadata that may contain personal data."""


def _long_enough(value: SecretStr) -> SecretStr:
    # a secret that is read from a file often ends with a line break
    text = value.get_secret_value().strip()
    # commands that need no secret leave the reference in its place
    if len(text) < _SHORTEST_KEY and not text.startswith("${"):
        raise PydanticCustomError("mask_key", "must have at least 16 characters")
    return SecretStr(text)


class ShapeConfig(Section):
    """The rows and columns that are made of the records of some tables.

    `where` and `set` see the columns as they were decoded. After them come `function`, `mask`,
    `explode`, `drop` or `keep`, then `rename`.
    """

    tables: Texts = Field(default=(), examples=[["silver_*"]])
    """Tables per type that the entry applies to, with the wildcards * and ?; all when left out."""
    types: Texts = Field(default=(), examples=[["chess"]])
    """Types that the entry applies to, with the wildcards * and ?; all types when left out."""
    where: Condition | None = Field(default=None, examples=["payload_version > 1"])
    """A boolean expression in SQL. Records for which it is false or unknown (null) are filtered:
    counted, and in no table per type."""
    set: Mapping[NewColumn, Expression] = Field(
        default_factory=dict, examples=[{"email": "lower(email)"}]
    )
    """Columns by expressions in SQL: new ones, or existing ones that get another value. All see the
    columns as they were before."""
    function: FunctionName | None = Field(default=None, examples=["cleaning:clean"])
    """A function in Python, as MODULE:NAME, that gets a `pyarrow.RecordBatch` and returns one with
    as many rows; its columns may differ. The module is a file beside the pipeline file, or can be
    imported."""
    mask: Mapping[Text, MaskText] = Field(
        default_factory=dict, examples=[{"email": "token", "player.phone": "redact"}]
    )
    """Masks for personal data, by column or nested field, with the wildcards * and ?: hash,
    token, redact, or truncate(N) for the first N characters. hash is the same within a column of a
    table, token in all tables. The first pattern that fits a field counts."""
    explode: Text | None = Field(default=None, examples=["items"])
    """A column of arrays whose items become rows; all other columns are repeated in each of them. A
    null or empty array becomes one row, in which the column is null."""
    drop: Texts = Field(default=(), examples=[["debug", "tmp_*"]])
    """Columns to leave out, with the wildcards * and ?."""
    keep: Texts = Field(default=(), examples=[["id", "amount*"]])
    """The only columns to keep, with the wildcards * and ?."""
    rename: Mapping[Text, NewColumn] = Field(default_factory=dict, examples=[{"old": "new"}])
    """New names of columns."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield settings of one entry that contradict each other."""
        if not any(getattr(self, name) for name in _STEPS):
            yield (), f"needs one of {', '.join(_STEPS[:-1])} and {_STEPS[-1]}"
        if self.drop and self.keep:
            yield ("keep",), "cannot stand beside drop: it leaves out all other columns already"
        if self.explode is not None and (self.drop or self.keep):
            patterns = tuple(each.casefold() for each in self.drop or self.keep)
            if any_fits(patterns, [self.explode.casefold()]) is not bool(self.keep):
                yield ("explode",), "needs its column: it is left out by drop or keep"
        for setting, names in (("set", list(self.set)), ("rename", list(self.rename.values()))):
            folded = [name.casefold() for name in names]
            for name in names:
                if folded.count(name.casefold()) > 1:
                    yield (setting,), f"makes two columns of the name {name}"
                    break

    def changes_of(self, names: Set[str]) -> Iterator[tuple[str, str]]:
        """Yield settings that change columns of these names, in lower case, each with the name."""
        for setting, columns in (("set", [*self.set]), ("rename", [*self.rename.values()])):
            yield from ((setting, name) for name in columns if name.casefold() in names)
        for setting, patterns in (("mask", [*self.mask]), ("drop", self.drop)):
            folded = tuple(pattern.casefold() for pattern in patterns)
            for name in sorted(names) if folded else ():
                if any_fits(folded, [name]):
                    yield setting, name
        if self.explode is not None and self.explode.casefold() in names:
            yield "explode", self.explode
        if self.function is not None and names:
            yield "function", min(names)

    def rule(self) -> ShapeRule:
        """Return the entry as the planner uses it."""
        return ShapeRule(
            tables=self.tables,
            types=self.types,
            where=None if self.where is None else _expression("where", self.where),
            set=tuple((name, _expression(f"set.{name}", text)) for name, text in self.set.items()),
            function=None if self.function is None else ShapeFunction(self.function),
            mask=tuple(_mask(pattern, text) for pattern, text in self.mask.items()),
            explode=self.explode or "",
            drop=self.drop,
            keep=self.keep,
            rename=tuple(self.rename.items()),
        )


def _mask(pattern: str, text: str) -> tuple[str, MaskMethod, int]:
    name, _, length = text.partition("(")
    methods: dict[str, MaskMethod] = {"hash": "hash", "token": "token", "redact": "redact"}
    return pattern, methods.get(name, "truncate"), int(length.rstrip(")") or 0)


class Masking(Section):
    """The key of masks, and whether other layers may keep what masks remove."""

    key: Annotated[SecretStr, AfterValidator(_long_enough)] | None = Field(
        default=None, examples=["${env:MASK_KEY}"]
    )
    """Key of hash and token, 16 characters at least. Another key gives other values."""
    raw: RawRecords = "keep"
    """keep: bronze, if there is one, and the dead letters keep whole records. encrypt: keys, values
    and headers in them are encrypted by `key`, and dead letters can be replayed. withhold: a file
    with bronze is refused, and dead letters have neither key, value nor headers, so that they
    cannot be replayed."""


def raw_layers(tables: Tables, masking: Masking | None) -> tuple[str, ...]:
    """Return the places in the lake where values stay that masks remove elsewhere."""
    found: list[str] = []
    if masking is None or masking.raw == "keep":
        found += [f"{tables.bronze} (bronze)"] if tables.bronze else []
        found.append(f"{tables.dead_letters} (dead letters)")
    own = [name for name in _WHOLE if name in tables.metadata]
    found += [f"the column _{name} of all tables" for name in own]
    return tuple(found)


def mask_conflicts(
    shapes: Sequence[ShapeConfig],
    tables: Tables,
    masking: Masking | None,
    *,
    lands: bool = False,
) -> Iterator[Conflict]:
    """Yield settings that masks need, and settings that keep the values that masks remove.

    `lands` says that other jobs read their records from the bronze table of this one.
    """
    methods = {(n, p): text for n, one in enumerate(shapes) for p, text in one.mask.items()}
    if masking is None or masking.key is None:
        for (number, pattern), method in methods.items():
            if method in ("hash", "token"):
                yield ("shape", number, "mask", pattern), f"needs masking.key for {method}"
    if methods and "raw" in tables.metadata:
        yield ("tables", "metadata"), "cannot hold raw beside masks: it is the whole record"
    if masking is None or masking.raw == "keep":
        return
    if masking.raw == "encrypt":
        if masking.key is None:
            yield ("masking", "raw"), "needs masking.key for encrypt"
        if lands:
            yield ("masking", "raw"), "cannot be encrypt: the other jobs read bronze"
    elif tables.bronze:
        yield ("tables", "bronze"), "cannot be kept with masking.raw: withhold; encrypt keeps it"
    for name in _WHOLE:
        if name in tables.metadata:
            yield ("tables", "metadata"), f"cannot hold {name} with masking.raw: {masking.raw}"


def _expression(setting: str, text: str) -> SqlExpression:
    return SqlExpression(setting, text, columns_of(text, repeatable=True))


def shape_conflicts(
    shapes: Sequence[ShapeConfig], tables: Tables, keys: Sequence[KeyedTables], *, changes: bool
) -> Iterator[Conflict]:
    """Yield the entries of `shape` that this pipeline cannot apply, each with its place."""
    if shapes and changes:
        yield ("shape",), _NOT_FOR_CHANGES
    # a message without a value names its row by the columns that the source has
    named = {name.casefold() for one in keys if one.tombstones == "delete" for name in one.key}
    if shapes and not tables.each:
        yield ("shape",), "needs tables.each: it shapes the tables per type"
    others = {name for setting, name in tables.fixed_names().items() if setting != "each"}
    for number, one in enumerate(shapes):
        for setting, name in one.changes_of(named):
            why = f"cannot change {name}, by which messages without a value delete rows"
            yield ("shape", number, setting), why
        if one.explode is not None and "raw" in tables.metadata:
            why = "cannot be used with raw in tables.metadata: each row would have the whole record"
            yield ("shape", number, "explode"), why
        for table in sorted(others.intersection(one.tables)):
            why = f"names {table}, but only tables per type are shaped"
            yield ("shape", number, "tables"), why
