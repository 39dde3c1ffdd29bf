"""Shapes for the columns of a schema: the columns that come out, before any record is read.

DuckDB names the types of expressions over an empty table, in the driver. Tasks get the result, and
decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import pyarrow as pa
from pyarrow import types as kinds

from distributary.config.base import nearest
from distributary.config.rules.expressions import enclosed
from distributary.evolve.types import fold, is_list, is_map, is_side_name, is_struct, sql_name
from distributary.evolve.unified import REST
from distributary.model.names import printable
from distributary.model.record import TIMESTAMP
from distributary.model.rules.expectation import any_fits
from distributary.model.rules.shape_plan import RECORD_COLUMNS, Computed, Mask, ShapePlan
from distributary.model.rules.shape_rule import (
    MaskMethod,
    ShapeFunction,
    ShapeRule,
    SqlExpression,
)
from distributary.model.table import ChangeKind, Column, ColumnChange
from distributary.shape.checks import missing_column
from distributary.shape.evaluation import ENGINE, engine_words, input_schema
from distributary.shape.function import output_of, wider
from distributary.shape.mask import masked_type

_LONGEST_COMMENT = 200
_NOTE = ChangeKind.SHAPE_LIMITED
STORED_AS = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "UTINYINT", "USMALLINT"), "INTEGER"),
    "UINTEGER": "BIGINT",
    "UBIGINT": "DECIMAL(20, 0)",
    **dict.fromkeys(("HUGEINT", "UHUGEINT"), "DECIMAL(38, 0)"),
    **dict.fromkeys(
        ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), "TIMESTAMP WITH TIME ZONE"
    ),
    **dict.fromkeys(("UUID", "JSON"), "VARCHAR"),
}
"""Types of DuckDB that no table holds, with the type that holds all of their values."""


class ShapeError(ValueError):
    """An entry that cannot be applied to the records of a schema, with the setting and reason."""


@dataclass(frozen=True, slots=True)
class Unapplied:
    """A setting of an entry that a schema gives no reason to apply, with that reason."""

    setting: str
    why: str


@dataclass(slots=True)
class Resolved:
    """The shapes for one schema, in the order in which they are applied."""

    shapes: tuple[ShapePlan, ...] = ()
    columns: tuple[Column, ...] = ()
    unapplied: list[Unapplied] = field(default_factory=list)
    """Settings that are not applied, because the schema lacks a column that they name."""
    absent: list[Unapplied] = field(default_factory=list)
    """Settings that read a column as null, because the schema lacks it and the table has it."""

    def notes(self) -> tuple[ColumnChange, ...]:
        """Return lines for the history of the table's schema."""
        unapplied = [
            ColumnChange(_NOTE, u.setting, after=f"not applied, {u.why}", action="skip")
            for u in self.unapplied
        ]
        absent = [ColumnChange(_NOTE, a.setting, after=a.why, action="null") for a in self.absent]
        return (*unapplied, *absent)


def resolve(
    rules: Sequence[ShapeRule],
    columns: Sequence[Column],
    table: Sequence[Column],
    *,
    name: str = "",
    raw_in: str = "",
) -> Resolved:
    """Return what entries make of a schema's columns; `table` are the columns of its table so far.

    `name` is that of the table, for which masks hash, and `raw_in` says where the values stay that
    masks remove. Raise ShapeError if records of the schema cannot be shaped.
    """
    resolved = Resolved(columns=tuple(columns))
    for rule in _steps(rules):
        if rule.function is not None:
            shape: ShapePlan | None = _of_function(rule.function, resolved.columns)
        else:
            shape = _Resolution(rule, resolved, table, name, raw_in).shape()
        if shape is not None:
            resolved.shapes += (shape,)
            resolved.columns = shape.columns
    return resolved


def _steps(rules: Sequence[ShapeRule]) -> Iterator[ShapeRule]:
    """Yield the entries; one with a function as what is before it, the function, and the rest."""
    for rule in rules:
        if rule.function is None:
            yield rule
            continue
        yield ShapeRule(where=rule.where, set=rule.set)
        yield ShapeRule(function=rule.function)
        yield replace(rule, where=None, set=(), function=None)


def _of_function(function: ShapeFunction, before: Sequence[Column]) -> ShapePlan:
    """Return the shape that a function makes of columns."""
    given = pa.schema([pa.field(column.name, column.type) for column in before])
    try:
        schema = output_of(function, given)
    except ValueError as error:
        raise ShapeError(f"{function.setting}: {error}") from None
    known = {column.name: column for column in before}
    columns: list[Column] = []
    for one in schema:
        type_ = stored_type(wider(one.type))
        if type_ is None:
            why = f"returns {printable(one.name)} as {printable(str(one.type))}"
            raise ShapeError(f"{function.setting}: {why}, which no table holds")
        same = known.get(one.name)
        new = Column(one.name, type_, comment=f"shape: {function.setting}")
        columns.append(same if same is not None and same.type == type_ else new)
    if len({fold(column.name) for column in columns}) < len(columns):
        raise ShapeError(f"{function.setting}: returns columns whose names differ by case only")
    return ShapePlan((), None, (), (), tuple(columns), function=function)


class _Resolution:
    """One entry of `shape` and the columns before it."""

    def __init__(
        self,
        rule: ShapeRule,
        resolved: Resolved,
        table: Sequence[Column],
        name: str,
        raw_in: str,
    ) -> None:
        self._rule = rule
        self._name = name
        self._raw_in = f"; its values stay in {raw_in}" if raw_in else ""
        self._resolved = resolved
        self._before = resolved.columns
        about = {name: Column(name, type_) for name, type_ in RECORD_COLUMNS.items()}
        # A leading underscore is the pipeline's own: those columns are not of the schema.
        self._absent = {
            fold(c.name): Column(c.name, c.type) for c in table if not c.name.startswith("_")
        }
        self._there = about | {fold(c.name): c for c in self._before}
        self._inputs: dict[str, Column] = {}

    def shape(self) -> ShapePlan | None:
        """Return the shape; None if it would change nothing."""
        rule = self._rule
        where = rule.where
        if where is not None and (why := self._use(where)):
            raise ShapeError(f"{where.setting}: {why}")
        sets = {}
        for name, expression in rule.set:
            if why := self._use(expression):
                self._resolved.unapplied.append(Unapplied(expression.setting, why))
            else:
                sets[name] = expression
        computed = self._typed(where, list(sets.values()))
        output = self._set(list(sets), computed)
        masks = self._masks([column for column, _ in output])
        exploded = self._exploded(output)
        output = self._renamed(self._chosen(output))
        names = [fold(column.name) for column, _ in output]
        if doubled := next((c.name for c, _ in output if names.count(fold(c.name)) > 1), ""):
            raise ShapeError(f"rename: makes two columns of the name {printable(doubled)}")
        if not output:
            raise ShapeError(f"{'keep' if rule.keep else 'drop'}: leaves no column")
        same = [column for column, _ in output] == list(self._before)
        if where is None and not computed and same and exploded is None and not masks:
            return None
        columns, sources = zip(*output, strict=True)
        unmasked = tuple(column.type for column in columns) if masks else ()
        columns, kept = self._masked(columns, masks)
        before = None
        if exploded is not None:
            place = sources.index(exploded)
            before = columns[place]
            item = replace(before, type=before.type.value_type)
            columns = (*columns[:place], item, *columns[place + 1 :])
        inputs = tuple(self._inputs.values())
        return ShapePlan(inputs, where, computed, sources, columns, before, kept, unmasked)

    def _use(self, expression: SqlExpression) -> str:
        """Note the columns that an expression reads; return the reason if it cannot be applied."""
        known = self._absent | self._there
        lower = {column.name.lower(): column for column in known.values()}
        if why := missing_column(expression.columns, lower):
            absent = next((n for n, *_ in expression.columns if n.lower() not in lower), "")
            meant = nearest(absent, lower) if why == f"no column {printable(absent)}" else ""
            return f"{why}, did you mean {printable(lower[meant].name)}?" if meant else why
        for first, *_ in expression.columns:
            column = known[fold(first)]
            twins = [c.name for c in self._before if fold(c.name) == fold(first)]
            if len(twins) > 1:
                return f"{printable(first)} stands for {len(twins)} columns"
            self._inputs[fold(first)] = column
            if fold(first) not in self._there:
                why = f"{printable(first)} is null, because the schema lacks it"
                self._resolved.absent.append(Unapplied(expression.setting, why))
        return ""

    def _typed(
        self, where: SqlExpression | None, sets: Sequence[SqlExpression]
    ) -> tuple[Computed, ...]:
        if where is not None:
            (found,) = self._types([where])
            if found != "BOOLEAN":
                raise ShapeError(f"{where.setting}: gives {printable(found)}, not true or false")
        if not sets:
            return ()
        texts = []
        for expression, found in zip(sets, self._types(sets), strict=True):
            stored = STORED_AS.get(found, "VARCHAR" if found.startswith("ENUM(") else "")
            text = enclosed(expression.text)
            texts.append(f"CAST({text} AS {stored})" if stored else text)
        schema = ENGINE.schema(self._schema(), texts)
        computed: list[Computed] = []
        for expression, text, one in zip(sets, texts, schema, strict=True):
            type_ = stored_type(one.type)
            if type_ is None:
                raise ShapeError(
                    f"{expression.setting}: gives {printable(str(one.type))}, which no table "
                    "holds; cast it, such as to VARCHAR"
                )
            computed.append(Computed(expression, text, type_))
        return tuple(computed)

    def _types(self, expressions: Sequence[SqlExpression]) -> list[str]:
        import duckdb

        try:
            return ENGINE.types(self._schema(), [enclosed(e.text) for e in expressions])
        except duckdb.Error as error:
            if isinstance(error, duckdb.FatalException):
                ENGINE.reset()
            if len(expressions) == 1:
                raise ShapeError(f"{expressions[0].setting}: {engine_words(error)}") from None
        return [self._types([expression])[0] for expression in expressions]

    def _schema(self) -> pa.Schema:
        return input_schema(tuple(self._inputs.values()))

    def _set(
        self, names: Sequence[str], computed: Sequence[Computed]
    ) -> list[tuple[Column, str | int]]:
        """Return the columns with the computed ones: in place of those of their names, or last."""
        output: dict[str, tuple[Column, str | int]] = {
            fold(column.name): (column, column.name) for column in self._before
        }
        if len(output) < len(self._before):
            raise ShapeError("two columns have names that differ by case only")
        for number, (name, one) in enumerate(zip(names, computed, strict=True)):
            before = output.get(fold(name))
            text = " ".join(one.expression.text.split())[:_LONGEST_COMMENT]
            spelled = name if before is None else before[0].name
            output[fold(name)] = (Column(spelled, one.type, comment=f"shape: {text}"), number)
        return list(output.values())

    def _masks(self, columns: Sequence[Column]) -> list[Mask]:
        """Return the masks of columns and their fields, by the names before `rename`."""
        masks: list[Mask] = []
        used: set[str] = set()
        paths = [path for column in columns for path in _paths(column)]
        for path in paths:
            for pattern, method, length in self._rule.mask:
                if any_fits((fold(pattern),), [fold(path.name), fold(path.known_as)]):
                    used.add(pattern)
                    if _is_covered(path, masks):
                        break
                    if path.in_map:
                        why = "is inside of a map, which only redact masks, as a whole"
                        raise ShapeError(f"mask.{pattern}: {printable(path.name)} {why}")
                    is_text = kinds.is_string(path.type)
                    if path.name != path.known_as and method == "truncate" and not is_text:
                        method, length = "redact", 0
                    masks.append(self._mask(path, method, length))
                    break
        for path in paths:
            # JSON text of what the schema does not name: any masked field
            if self._rule.mask and path.name == REST and not _is_covered(path, masks):
                masks.append(self._mask(path, "redact", 0))
        # a side column without fields can hold values of the fields that its column has
        places = {path.place: fold(path.known_as) for path in paths}
        inside = [places[mask.column, mask.fields] for mask in masks]
        for path in paths:
            if path.name != path.known_as and path.is_leaf and not _is_covered(path, masks):
                if any(name.startswith(f"{fold(path.known_as)}.") for name in inside):
                    masks.append(self._mask(path, "redact", 0))
        for pattern, _, _ in self._rule.mask:
            if pattern in used:
                continue
            for path in paths:
                if fold(pattern).startswith(f"{fold(path.known_as)}.") and path.is_leaf:
                    # text in place of a struct can hold the values of its fields
                    is_now = f"{printable(path.name)} is {printable(sql_name(path.type))}"
                    raise ShapeError(f"mask.{pattern}: {is_now}, which has no fields")
            why = f"no column {printable(pattern)}"
            self._resolved.unapplied.append(Unapplied(f"mask.{pattern}", why))
        return masks

    def _mask(self, path: _Path, method: MaskMethod, length: int) -> Mask:
        scope = "\0".join((self._name, path.column, *path.fields))
        return Mask(path.column, path.fields, method, length, scope)

    def _masked(
        self, columns: Sequence[Column], masks: Sequence[Mask]
    ) -> tuple[tuple[Column, ...], tuple[Mask, ...]]:
        """Return the columns after `rename` with the types of masks, and the masks of these."""
        renamed = {fold(old): new for old, new in self._rule.rename}
        kept: list[Mask] = []
        after: list[Column] = []
        for column in columns:
            for mask in masks:
                if renamed.get(fold(mask.column), mask.column) != column.name:
                    continue
                mine = replace(mask, column=column.name)
                kept.append(mine)
                try:
                    type_ = masked_type(column.type, mine)
                except ValueError as error:
                    setting = ".".join(("mask", mask.column, *mask.fields))
                    raise ShapeError(f"{setting}: {error}") from None
                column = replace(
                    column, type=type_, comment=f"shape: {mine.describe()}{self._raw_in}"
                )
            after.append(column)
        return tuple(after), tuple(kept)

    def _exploded(self, output: Sequence[tuple[Column, str | int]]) -> str | int | None:
        """Return the source of the column whose items become rows; None if none does."""
        name = self._rule.explode
        for column, source in output:
            if name and fold(column.name) == fold(name):
                if not is_list(column.type):
                    raise ShapeError(f"explode: {printable(name)} is not an array")
                return source
        if name:
            why = f"no column {printable(name)}"
            self._resolved.unapplied.append(Unapplied("explode", why))
        return None

    def _chosen(self, output: list[tuple[Column, str | int]]) -> list[tuple[Column, str | int]]:
        """Return the columns that stay; a side column goes and stays with its column."""
        if not self._rule.drop and not self._rule.keep:
            return output
        patterns = tuple(map(fold, self._rule.drop or self._rule.keep))
        wanted = bool(self._rule.keep)

        def stays(column: Column) -> bool:
            return any_fits(patterns, [fold(column.side_of or column.name)]) is wanted

        for pattern in self._rule.drop or self._rule.keep:
            if not any(any_fits((fold(pattern),), [fold(c.name)]) for c, _ in output):
                setting = "keep" if wanted else "drop"
                why = f"no column {printable(pattern)}"
                self._resolved.unapplied.append(Unapplied(setting, why))
        return [(column, source) for column, source in output if stays(column)]

    def _renamed(self, output: list[tuple[Column, str | int]]) -> list[tuple[Column, str | int]]:
        names = {fold(old): new for old, new in self._rule.rename}
        if not names:
            return output
        there = {fold(column.name) for column, _ in output}
        for old, _ in self._rule.rename:
            if fold(old) not in there:
                why = f"no column {printable(old)}"
                self._resolved.unapplied.append(Unapplied("rename", why))
        renamed = []
        for column, source in output:
            name = names.get(fold(column.name), column.name)
            side_of = names.get(fold(column.side_of), column.side_of)
            renamed.append((replace(column, name=name, side_of=side_of), source))
        return renamed


@dataclass(frozen=True, slots=True)
class _Path:
    """A column, or a field inside of one, as masks name it."""

    column: str
    fields: tuple[str, ...]
    name: str
    known_as: str
    """The name by which patterns know it: a side column has the values of its column."""
    type: pa.DataType
    """Its type; of arrays that of their items."""
    in_map: bool = False

    @property
    def place(self) -> tuple[str, tuple[str, ...]]:
        """Return the column and the fields, which identify it."""
        return self.column, self.fields

    @property
    def is_leaf(self) -> bool:
        """Return whether it has no fields."""
        return not is_struct(self.type)


def _paths(column: Column) -> Iterator[_Path]:
    """Yield the path of a column and those of all fields inside of it, outer ones first."""
    base = column.side_of or column.name
    yield from _paths_from(_Path(column.name, (), column.name, base, _items(column.type)))


def _is_covered(path: _Path, masks: Sequence[Mask]) -> bool:
    """Return whether a mask of a column or field masks this one as well, as all of its fields."""
    return any(
        mask.column == path.column and mask.fields == path.fields[: len(mask.fields)]
        for mask in masks
    )


def _paths_from(path: _Path) -> Iterator[_Path]:
    yield path
    if is_map(path.type):
        for inner in (path.type.key_type, path.type.item_type):
            inside = replace(path, type=_items(inner), in_map=True)
            yield from islice(_paths_from(inside), 1, None)
    for one in () if path.is_leaf else path.type:
        others = (other.name for other in path.type)
        base = next((name for name in others if is_side_name(one.name, name, one.type)), one.name)
        name, known_as = f"{path.name}.{one.name}", f"{path.known_as}.{base}"
        fields = (*path.fields, one.name)
        type_ = _items(one.type)
        yield from _paths_from(_Path(path.column, fields, name, known_as, type_, path.in_map))


def _items(type_: pa.DataType) -> pa.DataType:
    while is_list(type_):
        type_ = type_.value_type
    return type_


def stored_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type in which a table holds values of an Arrow type; None if it holds none."""
    if kinds.is_timestamp(type_) and type_.tz is not None:
        return TIMESTAMP
    if is_list(type_):
        inner = stored_type(type_.value_type)
        return None if inner is None else pa.list_(inner)
    if is_struct(type_):
        inside = [(one.name, stored_type(one.type)) for one in type_]
        # A row without names, such as (1, 2), has no fields that a table could hold.
        whole = all(name and found is not None for name, found in inside)
        return pa.struct(inside) if inside and whole else None
    if is_map(type_):
        key, item = stored_type(type_.key_type), stored_type(type_.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return type_ if type_ in _SCALARS or kinds.is_decimal128(type_) else None


_SCALARS = frozenset(
    {
        *(pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.date32()),
    }
)
