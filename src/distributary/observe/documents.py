"""Reading of dataclasses from JSON documents, also of another version of this program.

Unknown keys are ignored, and values of a wrong type are refused.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from distributary import errors
from distributary.errors import DistributaryError, ErrorCode
from distributary.observe.log_format import moment

_T = TypeVar("_T")
_Reader = Callable[[Any], Any]
ERRORS: Mapping[str, type[DistributaryError]] = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, DistributaryError)
}
"""All error classes by name."""


def read_error(document: Mapping[str, Any]) -> DistributaryError:
    """Return the error of a document, in the format of `DistributaryError.as_dict` or of an event.

    Raises TypeError for other documents.
    """
    parts = ("what", "where", "evidence", "next_step")
    texts = {part: _checked(str, document.get(part, "")) for part in parts}
    code = str(document.get("code"))
    known = ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.INTERNAL
    kind = ERRORS.get(document.get("class", ""), DistributaryError)
    error = kind(texts.pop("what"), code=known, **texts)
    error.context = {str(key): str(value) for key, value in document.get("context", {}).items()}
    error.retryable = bool(document.get("retryable", error.retryable))
    error.exit_code = _checked(int, document.get("exit_code", error.exit_code))
    return error


@cache
def _shape(kind: Any) -> tuple[tuple[str, _Reader, bool], ...]:
    """Return each field: its name, its reader, and whether it is optional."""
    hints = get_type_hints(kind)
    return tuple(
        (
            each.name,
            _reader(hints[each.name]),
            each.default is not MISSING or each.default_factory is not MISSING,
        )
        for each in fields(kind)
    )


def read_as(kind: Callable[..., _T], document: Any) -> _T:
    """Build a dataclass from a JSON document; skip unknown keys.

    Raises KeyError, TypeError or ValueError for what is none.
    """
    _checked(dict, document)
    given = {
        name: read(document[name])
        for name, read, optional in _shape(kind)
        if name in document or not optional
    }
    return kind(**given)


def _reader(hint: Any) -> _Reader:
    """Return a function that reads values of a type.

    Computed once, because there are many values.
    """
    origin = get_origin(hint)
    if origin is types.UnionType:
        (kind,) = (each for each in get_args(hint) if each is not type(None))
        inner = _reader(kind)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        inner = _reader(get_args(hint)[0])
        return lambda value: tuple(inner(each) for each in _checked(list, value))
    if origin is not None:
        inner = _reader(get_args(hint)[1])
        return lambda value: {key: inner(each) for key, each in _checked(dict, value).items()}
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(read_as, hint)
    known: dict[Any, _Reader] = {
        Any: lambda value: value,
        DistributaryError: read_error,
        datetime: moment,
    }
    return known.get(hint) or partial(_number if hint is float else _checked, hint)


def _number(kind: type, value: Any) -> Any:
    return float(value) if type(value) is int else _checked(kind, value)


def _checked(kind: type, value: Any) -> Any:
    # an integer does not count as a boolean, nor a boolean as an integer
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value
