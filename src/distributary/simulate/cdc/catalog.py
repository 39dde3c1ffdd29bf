"""The tables of the simulated database: users, orders, and more of every shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distributary.simulate.cdc.kinds import Kind, carried_as
from distributary.simulate.cdc.plan import CdcFormat, CdcPlan, Feature, SourceType
from distributary.simulate.cdc.shapes import CdcColumn, Shape

_MAIN, _OTHER = 0, 1
# by source: the namespace of most tables, a second one, and what it is called with odd names
_NAMESPACES = {
    SourceType.MYSQL: ("shop", "archive", "ea-main"),
    SourceType.POSTGRESQL: ("public", "archive", "ea-main"),
    SourceType.ORACLE: ("SHOP", "ARCHIVE", "ea-main"),
    SourceType.SQLSERVER: ("dbo", "archive", "ea-main"),
}
_OFTEN_NULL = 0.85
_NUMBER_DIGITS = 20
_WIDE_DIGITS, _WIDE_SCALE = 30, 10
_NARROW_DIGITS, _NARROW_SCALE = 14, 4


@dataclass(frozen=True, slots=True)
class Template:
    """A table before its columns are known to a certain database."""

    name: str
    key: str
    """`id int`, or several with commas; a question mark: may be null; empty: no key."""
    rest: str
    """The other columns, in the same way; two question marks: mostly null."""
    odd: str = ""
    """What it is called with odd names."""
    place: int = _MAIN


TEMPLATES = (
    Template(
        "users",
        "id int",
        "name text, email text?, age int?, active bool, balance decimal(12,2), birthday date?, "
        "created_at timestamp",
    ),
    Template(
        "orders",
        "id bigint",
        "user_id int, status enum, amount decimal(10,2), note text?, paid bool?, "
        "placed_at datetime, details json?",
    ),
    Template(
        "order_items",
        "order_id bigint, line int",
        "sku text, quantity int, price decimal(18,4), discount double?",
    ),
    Template(
        "visits",
        "",
        "level int, message text?, at timestamp, data json?",
        odd="visits log",
    ),
    Template(
        "everything",
        "code text",
        "small int?, big bigint?, any number?, exact decimal(wide)?, real float?, dbl double?, "
        "words text?, state enum?, guid uuid?, flag bool?, day date?, local datetime?, "
        "moment timestamp?, clock time?, doc json?, raw binary?",
    ),
    Template(
        "purchases",
        "region text?, code int",
        "group text?, select int?, unit price decimal(9,3)?, since date",
        odd="order",
    ),
    Template(
        "settings",
        "id int",
        "a int??, b text??, c decimal(8,2)??, d date??, e timestamp??, f bool??, g json??, "
        "h binary??, i double??, j bigint??",
    ),
    Template(
        "documents",
        "guid uuid",
        "title text, body long_text?, meta json?, raw binary?, size bigint",
        odd="my documents",
    ),
    Template(
        "prices",
        "product_id int, valid_from date",
        "price decimal(12,4), currency enum, changed_at timestamp?",
        odd="prices-eu",
    ),
    Template("orders", "id int", "customer text, total decimal(14,2), closed bool", place=_OTHER),
    Template("my_table", "id int", "val int?", odd="my table", place=_OTHER),
    Template(
        "ledger",
        "account bigint",
        "amount decimal(wide), rate float?, factor double?, booked_at datetime, total number?",
    ),
)

_ADDED = ("int", "text", "decimal(10,2)", "timestamp", "bool", "date", "json", "bigint", "double")


def shapes(plan: CdcPlan) -> Iterator[Shape]:
    """The tables of a plan: a larger plan has the same ones, and more."""
    for number in range(plan.tables):
        again, which = divmod(number, len(TEMPLATES))
        yield _shape(TEMPLATES[which], plan, again)


def added_column(shape: Shape, number: int) -> CdcColumn:
    """A column that a table gets later."""
    name = _cased(f"added_{number}", shape.source_type)
    return _column(f"{name} {_ADDED[number % len(_ADDED)]}?", shape)


def _shape(template: Template, plan: CdcPlan, again: int) -> Shape:
    odd = plan.has(Feature.ODD_NAMES)
    main, other, strange = _NAMESPACES[plan.source_type]
    spaces = {_MAIN: main, _OTHER: strange if odd else other}
    name = template.odd if odd and template.odd else template.name
    empty = Shape(
        source_type=plan.source_type,
        format=plan.format,
        namespace=spaces[template.place],
        table=_cased(f"{name}_{again + 1}" if again else name, plan.source_type),
        key=(),
        stated_key=(),
        columns=(),
    )
    keys = tuple(_column(text, empty) for text in _split(template.key))
    rest = tuple(_column(text, empty, odd=odd) for text in _split(template.rest))
    names = tuple(column.name for column in keys)
    shouted = plan.has(Feature.KEY_CASE) and plan.source_type is SourceType.SQLSERVER
    return Shape(
        source_type=plan.source_type,
        format=plan.format,
        namespace=empty.namespace,
        table=empty.table,
        key=names,
        stated_key=tuple(each.upper() for each in names) if shouted else names,
        columns=keys + rest,
    )


def _split(text: str) -> list[str]:
    return text.split(", ") if text else []


def _column(text: str, shape: Shape, *, odd: bool = False) -> CdcColumn:
    name, _, kind = text.rpartition(" ")
    # in an Avro file, a name with a space has none
    if not odd or shape.format is CdcFormat.AVRO:
        name = name.replace(" ", "_")
    kind, digits = kind.rstrip("?"), ""
    if "(" in kind:
        kind, _, digits = kind.rstrip(")").partition("(")
    precision, scale = _digits(digits, shape)
    if kind == Kind.NUMBER:
        precision = _NUMBER_DIGITS
    return CdcColumn(
        name=_cased(name, shape.source_type),
        kind=Kind(kind),
        carried=carried_as(Kind(kind), shape.source_type, shape.format),
        nullable=text.endswith("?"),
        precision=precision,
        scale=scale,
        nulls=_OFTEN_NULL if text.endswith("??") else 0.1,
    )


def _digits(text: str, shape: Shape) -> tuple[int, int]:
    if text == "wide":
        if shape.format.is_json_file:
            return _NARROW_DIGITS, _NARROW_SCALE
        return _WIDE_DIGITS, _WIDE_SCALE
    precision, _, scale = text.partition(",")
    return int(precision or 0), int(scale or 0)


def _cased(name: str, source_type: SourceType) -> str:
    """Oracle writes in capitals whatever needs no quotes."""
    plain = name.replace("_", "a").isalnum()
    return name.upper() if source_type is SourceType.ORACLE and plain else name
