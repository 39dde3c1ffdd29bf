"""Finds the JSON texts that add nothing to the known shape of their group, at the least cost.

Many texts of one shape are matched with its regular expression: see `pattern`. Each use of an
expression costs milliseconds before its first text, which a thousand types with fifty records each
would pay a thousand times. Texts of small groups are parsed instead, and their values compared with
the shape, at a few microseconds a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from distributary.decode.base import Mask, Positions, RefusedError
from distributary.decode.json.infer import MAX_DEPTH
from distributary.decode.json.json_text import parse, plain_numbers
from distributary.decode.json.pattern import Named, familiar
from distributary.model.cache import Cache

_MANY = 200
"""The number of texts from which an expression costs less than parsing each text."""


class Group(NamedTuple):
    """Texts of one shape."""

    rows: Positions
    shape: Mapping[str, Any]
    named: Named = MappingProxyType({})
    """The texts that must be present, by path, as in `familiar`."""


def adding_nothing(texts: pa.BinaryArray, groups: Sequence[Group]) -> Mask:
    """Return a mask of the texts that certainly add nothing to the shape of their group."""
    mask = np.zeros(len(texts), np.bool_)
    small = []
    for group in groups:
        if len(group.rows) < _MANY:
            small.append(group)
        else:
            mask[group.rows] = familiar(_taken(texts, group.rows), group.shape, group.named)
    if small:
        rows = np.concatenate([group.rows for group in small])
        mask[rows] = _compared(_taken(texts, rows), small)
    return mask


def _taken(texts: pa.BinaryArray, rows: Positions) -> pa.BinaryArray:
    in_place = len(rows) == len(texts) and (np.diff(rows) == 1).all()
    return texts if in_place else texts.take(pa.array(rows))


def _compared(texts: pa.BinaryArray, groups: Sequence[Group]) -> Mask:
    """Parse the texts, which are those of all groups in turn, and compare them with the shapes."""
    contents, plain = texts.to_pylist(), plain_numbers(texts)
    mask, start = np.zeros(len(contents), np.bool_), 0
    for group in groups:
        rule = _RULES.of((group.shape,), partial(_rule_or_none, group.shape))
        named = [(path.split("."), text) for path, text in group.named.items()]
        for place in range(start, start + len(group.rows)):
            try:
                # a name that stands twice is the decoder's to refuse: such a record has no row
                value = (
                    orjson.loads(contents[place])
                    if plain[place]
                    else parse(contents[place], max_depth=MAX_DEPTH)
                )
            except (orjson.JSONDecodeError, RefusedError):
                continue
            mask[place] = _holds(rule, value) and all(
                _at(value, path) == text for path, text in named
            )
        start += len(group.rows)
    return mask


def _at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value.get(name) if type(value) is dict else None
    return value


# The rule of a shape: for each Python type of a parsed value whether the shape takes it, or a
# function that looks into the value. A lookup by type is the quickest test that Python has.

Check = Literal[True] | Callable[[Any], bool]
Rule = Mapping[type, Check]

_RULES: Cache[Rule] = Cache(4096)
_NOTHING: Rule = {}
_ANYTHING: Rule = dict.fromkeys((type(None), bool, int, float, Decimal, str, list, dict), True)
_SINGLE: Mapping[str, Rule] = {
    "null": {type(None): True},
    "boolean": {bool: True},
    "string": {str: True},
}


def _holds(rule: Rule, value: Any) -> bool:
    check = rule.get(type(value))
    return check is True or (check is not None and check(value))


def _rule_or_none(shape: Mapping[str, Any]) -> Rule:
    """Return the rule of a shape; for a schema not inferred, a rule that accepts nothing."""
    try:
        return _rule(shape)
    except (KeyError, TypeError, ValueError, AttributeError):
        return _NOTHING


def _rule(shape: Mapping[str, Any]) -> Rule:
    if not shape:
        return _ANYTHING
    if "anyOf" in shape:
        rules = [_rule(alternative) for alternative in shape["anyOf"]]
    else:
        types = shape["type"]
        names = types if isinstance(types, list) else [types]
        rules = [_rule_of_type(name, shape) for name in names]
    merged: dict[type, Check] = {type(None): True}
    for rule in rules:
        for type_, check in rule.items():
            merged[type_] = _either(merged[type_], check) if type_ in merged else check
    return merged


def _rule_of_type(name: str, shape: Mapping[str, Any]) -> Rule:
    if name == "object":
        return {dict: _object(shape["properties"])}
    if name == "array":
        return {list: _list(_rule(shape["items"]))}
    if name == "integer":
        least, most = _bounds(shape)
        return {int: lambda value: least <= value <= most}
    if name == "number":
        least, most = _bounds({})
        return {float: True, int: lambda value: least <= value <= most}
    return _SINGLE[name]


def _bounds(shape: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bounds of the integers that a shape accepts; by default, those of doubles."""
    if "maximum" in shape:
        return shape["minimum"], shape["maximum"]
    power = 63 if "format" in shape else 53
    return 1 - 2**power, 2**power - 1


def _object(properties: Mapping[str, Any]) -> Callable[[Any], bool]:
    rules = {name: _rule(shape) for name, shape in properties.items()}

    def holds(value: dict[str, Any]) -> bool:
        # every record comes through here: what the shape does not have is an exception
        try:
            for name, inner in value.items():
                check = rules[name][type(inner)]
                if check is not True and not check(inner):
                    return False
        except KeyError:
            return False
        return True

    return holds


def _list(rule: Rule) -> Callable[[Any], bool]:
    def holds(values: list[Any]) -> bool:
        try:
            for value in values:
                check = rule[type(value)]
                if check is not True and not check(value):
                    return False
        except KeyError:
            return False
        return True

    return holds


def _either(one: Check, other: Check) -> Check:
    if one is True or other is True:
        return True
    checks = [check for check in (one, other) if callable(check)]
    return lambda value: any(check(value) for check in checks)
