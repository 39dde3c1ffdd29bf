"""Events as lines of JSON, and back: how a process tells another one what happens in it.

`decode` is the exact inverse of `encode`. It passes over fields and events that it does not know,
so that the two sides need not be of one version.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, get_args, get_origin, get_type_hints

from distributary import errors
from distributary.errors import DistributaryError, ErrorCode
from distributary.observe import events
from distributary.observe.events import Event

_KIND = "event"
_PLAIN = frozenset({str, int, float, bool, type(None)})
_Reader = Callable[[Any], Any]
_EVENTS: Mapping[str, type[Event]] = {
    name: each
    for name, each in vars(events).items()
    if isinstance(each, type) and issubclass(each, Event) and each is not Event
}
_ERRORS: Mapping[str, type[DistributaryError]] = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, DistributaryError)
}


def encode(event: Event) -> str:
    """One line, without its end."""
    return json.dumps({_KIND: type(event).__name__} | _plain_fields(event), separators=(",", ":"))


def decode(line: str) -> Event | None:
    """The event of a line; None for what is no event, or one that is not known here."""
    try:
        document = json.loads(line)
        kind = _EVENTS[document.pop(_KIND)]
        event = _made(kind, document)
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return None
    return event if isinstance(event, Event) else None


def _plain(value: Any) -> Any:
    # most values are: a batch of many tables is quickly told
    if type(value) in _PLAIN:
        return value
    if isinstance(value, DistributaryError):
        return _plain_error(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return _plain_fields(value) if is_dataclass(value) else value


def _plain_fields(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    return {name: _plain(getattr(value, name)) for name in _names(kind)}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _plain_error(error: DistributaryError) -> dict[str, Any]:
    # a class of another module is told as the nearest one of the tree
    names = (each.__name__ for each in type(error).__mro__)
    known = next(name for name in names if name in _ERRORS)
    return error.as_dict() | {"class": known, "exit_code": error.exit_code}


def _error(document: Mapping[str, Any]) -> DistributaryError:
    parts = ("what", "where", "evidence", "next_step")
    texts = {part: _checked(str, document.get(part, "")) for part in parts}
    code = str(document.get("code"))
    known = ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.INTERNAL
    kind = _ERRORS.get(document.get("class", ""), DistributaryError)
    error = kind(texts.pop("what"), code=known, **texts)
    error.context = {str(key): str(value) for key, value in document.get("context", {}).items()}
    error.retryable = bool(document.get("retryable", error.retryable))
    error.exit_code = _checked(int, document.get("exit_code", error.exit_code))
    return error


@cache
def _shape(kind: Any) -> tuple[tuple[str, _Reader, bool], ...]:
    """Each field: its name, how it is read, and whether it may be left out."""
    hints = get_type_hints(kind)
    return tuple(
        (
            each.name,
            _reader(hints[each.name]),
            each.default is not MISSING or each.default_factory is not MISSING,
        )
        for each in fields(kind)
    )


def _made(kind: Any, document: Mapping[str, Any]) -> Any:
    _checked(dict, document)
    given = {
        name: read(document[name])
        for name, read, optional in _shape(kind)
        if name in document or not optional
    }
    return kind(**given)


def _reader(hint: Any) -> _Reader:
    """How a value of a type is read; found out once, because there are many of each."""
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
    if is_dataclass(hint):
        return partial(_made, hint)
    known: dict[Any, _Reader] = {datetime: datetime.fromisoformat, DistributaryError: _error}
    return known.get(hint) or partial(_number if hint is float else _checked, hint)


def _number(kind: type, value: Any) -> Any:
    return float(value) if type(value) is int else _checked(kind, value)


def _checked(kind: type, value: Any) -> Any:
    # an integer is no truth value here, nor the other way round
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value
