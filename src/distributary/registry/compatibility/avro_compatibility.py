"""Checks whether data of one Avro schema can be read with another, by Avro's resolution rules.

There are two differences to registries. A decimal keeps its scale and does not lose digits, because
otherwise its numbers would be read as other numbers. And a default counts only if it fits its
field.
"""

from __future__ import annotations

from functools import lru_cache

from distributary.registry.compile.avro_schema import (
    Array,
    AvroRecord,
    Enum,
    Fixed,
    Logical,
    Map,
    Named,
    Primitive,
    Schema,
    Type,
    Union,
    parse_avro,
    short_name,
    type_name,
)

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def unreadable(writer: bytes, reader: bytes) -> list[str]:
    """Return the reasons why data of one compiled schema cannot be read with another."""
    check = _Check(_schema(writer), _schema(reader))
    check.compare(check.old.top, check.new.top, "the schema")
    seen: set[tuple[str, str]] = set()
    # a work list instead of recursion, because records may refer to each other endlessly
    while check.pending:
        pair = check.pending.pop()
        names = (pair[0].name, pair[1].name)
        if names not in seen:
            seen.add(names)
            check.records(*pair)
    return list(dict.fromkeys(check.problems))


@lru_cache(maxsize=256)
def _schema(body: bytes) -> Schema:
    return parse_avro(body.decode(), any_names=True)


class _Check:
    def __init__(self, old: Schema, new: Schema) -> None:
        self.old, self.new = old, new
        self.pending: list[tuple[AvroRecord, AvroRecord]] = []
        self.problems: list[str] = []

    def compare(self, old: Type, new: Type, at: str) -> None:
        """Compare a type of the writer with a type of the reader, records by name only."""
        if isinstance(old, Union):
            for branch in old.branches:
                self.compare(branch, new, at)
            return
        if isinstance(new, Union):
            chosen = self._branch(old, new)
            if chosen is None:
                self.problems.append(
                    f"{at} may be {type_name(old)}, which the reader's union lacks"
                )
            else:
                self.compare(old, chosen, at)
            return
        was, now = self.old.resolve(old), self.new.resolve(new)
        match was, now:
            case Array(before), Array(after):
                self.compare(before, after, f"{at}[]")
            case Map(before), Map(after):
                self.compare(before, after, f"{at}{{}}")
            case Primitive(), Primitive() if _promotes(was.name, now.name):
                self._decimals(was.logical, now.logical, at)
            case AvroRecord() | Enum() | Fixed(), AvroRecord() | Enum() | Fixed() if _alike(
                was, now
            ):
                self._named(was, now, at)
            case _:
                self.problems.append(f"{at} was {type_name(old)} and is {type_name(new)}")

    def records(self, old: AvroRecord, new: AvroRecord) -> None:
        """Compare the fields of two records."""
        before = {field.name: field for field in old.fields}
        after = {field.name for field in new.fields}
        for field in new.fields:
            at = f"{new.name}.{field.name}"
            # the writer's field that provides the values, by its name or by an alias
            aliases = (
                before[alias] for alias in field.aliases if alias in before and alias not in after
            )
            source = before.get(field.name) or next(aliases, None)
            if source is not None:
                self.compare(source.type, field.type, at)
            elif field.default is None:
                self.problems.append(f"{at} is not written and has no default")

    def _branch(self, old: Type, new: Union) -> Type | None:
        """Return the branch of a reader's union that accepts a writer's type, or None."""
        was = self.old.resolve(old)
        fitting = [branch for branch in new.branches if _matches(was, self.new.resolve(branch))]
        exact = [branch for branch in fitting if type_name(branch) == type_name(old)]
        return next(iter(exact + fitting), None)

    def _named(self, was: Named, now: Named, at: str) -> None:
        if not _one_name(was, now):
            self.problems.append(f"{at} was a {was.name} and is a {now.name}")
            return
        match was, now:
            case AvroRecord(), AvroRecord():
                self.pending.append((was, now))
            case Enum(), Enum():
                gone = [symbol for symbol in was.symbols if symbol not in now.symbols]
                if gone and now.default is None:
                    more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
                    self.problems.append(
                        f"{at} lacks {', '.join(gone[:3])}{more} of enum {was.name}"
                    )
            case Fixed(), Fixed():
                if was.size != now.size:
                    self.problems.append(f"{at} had {was.size} bytes and has {now.size}")
                self._decimals(was.logical, now.logical, at)

    def _decimals(self, was: Logical | None, now: Logical | None, at: str) -> None:
        if was is None or now is None or not was.name == now.name == "decimal":
            return
        if was.scale != now.scale or was.precision > now.precision:
            before, after = (
                f"decimal({decimal.precision},{decimal.scale})" for decimal in (was, now)
            )
            self.problems.append(f"{at} was {before} and is {after}")


def _matches(was: object, now: object) -> bool:
    match was, now:
        case Primitive(), Primitive():
            return _promotes(was.name, now.name)
        case Fixed(), Fixed() if was.size != now.size:
            return False
        case AvroRecord() | Enum() | Fixed(), AvroRecord() | Enum() | Fixed():
            return _alike(was, now) and _one_name(was, now)
    return _alike(was, now)


def _alike(was: object, now: object) -> bool:
    return type(was) is type(now)


def _promotes(was: str, now: str) -> bool:
    return was == now or now in _PROMOTED.get(was, ())


def _one_name(was: Named, now: Named) -> bool:
    # namespaces do not count, as in the reference implementation
    return short_name(was.name) == short_name(now.name) or was.name in now.aliases
