"""Checks of the arguments that users give to the Python API, so that errors are ours."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral
from types import UnionType
from typing import Any

from distributary.errors import ConfigError
from distributary.model.names import printable

_MOST = (1 << 63) - 1
"""The largest number that tables can hold."""


def wrong_argument(name: str, value: object, what: str) -> ConfigError:
    """Return the error for an argument: `what` says what it must be."""
    return ConfigError(
        f"{name} {what}",
        where=f"argument {name}",
        evidence=printable(repr(value))[:200],
        next_step="correct the call",
    )


def require(name: str, value: object, kind: type | UnionType, what: str) -> None:
    """Raise ConfigError for an argument of another type."""
    if not isinstance(value, kind):
        raise wrong_argument(name, value, what)


def require_name(name: str, value: object) -> None:
    """Raise ConfigError for an argument that is neither a text nor None."""
    require(name, value, str | None, "must be a text")


def require_number(name: str, value: object, *, least: int = 0) -> None:
    """Raise ConfigError for an argument that is not a whole number from `least` on."""
    is_number = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_number or not least <= value <= _MOST:  # type: ignore[operator]
        raise wrong_argument(name, value, f"must be a whole number, at least {least}")


def require_names(name: str, value: Collection[str] | None) -> None:
    """Raise ConfigError for an argument that is neither a list of texts nor None."""
    if value is None:
        return
    # a text is a list of texts, too, but its letters are never meant
    is_list = isinstance(value, Collection) and not isinstance(value, str | bytes)
    if not is_list or not all(isinstance(each, str) for each in value):
        raise wrong_argument(name, value, "must be a list of names")


def require_spark_session(name: str, value: object) -> None:
    """Raise ConfigError for an argument that is no session of Spark, or one that was stopped."""
    # a session of Spark Connect has another class, which may not be installed
    if not any(each.__name__ == "SparkSession" for each in type(value).__mro__):
        raise wrong_argument(name, value, "must be a SparkSession")
    if _is_stopped(value):
        raise wrong_argument(name, value, "is a SparkSession that was stopped: start a new one")


def _is_stopped(session: Any) -> bool:
    context = getattr(session, "_sc", None)
    if context is None:
        # Spark Connect
        return getattr(session, "is_stopped", False) is True
    return getattr(context, "_jsc", context) is None
