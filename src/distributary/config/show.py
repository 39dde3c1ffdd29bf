"""Every setting with its value and origin, secrets hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from distributary.config.base import Section
from distributary.config.fields import is_secret
from distributary.config.load import Loaded
from distributary.config.origin import Origin
from distributary.config.secrets import MASK, hide, hide_credentials, is_sealed


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `validate --show-config`."""

    key: str
    value: Any
    """As JSON would have it; `***` for a secret."""
    origin: Origin

    @property
    def text(self) -> str:
        """The value for people."""
        match self.value:
            case None | {} if not self.value:
                return ""
            case bool():
                return str(self.value).lower()
            case list():
                return ", ".join(map(str, self.value))
        return str(self.value)

    def as_dict(self) -> dict[str, Any]:
        """The row for `--json`."""
        return {"key": self.key, "value": self.value, "origin": self.origin.as_dict()}


def rows(loaded: Loaded) -> tuple[Row, ...]:
    """All settings in the order of the models."""
    plain = loaded.config.model_dump(mode="json", by_alias=True)
    return tuple(_section(loaded, loaded.config, plain, ""))


def as_json(loaded: Loaded) -> dict[str, Any]:
    """The same as one JSON document."""
    return {
        "version": 1,
        "file": loaded.file,
        "settings": [row.as_dict() for row in rows(loaded)],
        "warnings": [warning.as_dict() for warning in loaded.warnings],
    }


def _section(
    loaded: Loaded, section: Section, plain: Mapping[str, Any], prefix: str
) -> Iterator[Row]:
    for name, info in type(section).model_fields.items():
        key, value = info.alias or name, getattr(section, name)
        path = f"{prefix}{key}"
        if isinstance(value, Section):
            yield from _section(loaded, value, plain[key], f"{path}.")
        elif isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
            for index, item in enumerate(value):
                yield from _section(loaded, item, plain[key][index], f"{path}[{index}].")
        elif isinstance(value, Mapping) and value:
            yield from _options(loaded, info, value, plain[key], path)
        else:
            origin = _origin(loaded, path, given=name in section.model_fields_set)
            hidden = value is not None and (is_secret(info) or origin.secret)
            yield Row(path, MASK if hidden else _safe(loaded, plain[key]), origin)


def _options(
    loaded: Loaded,
    info: FieldInfo,
    options: Mapping[Any, Any],
    plain: Mapping[str, Any],
    path: str,
) -> Iterator[Row]:
    for (key, value), shown in zip(options.items(), plain.values(), strict=True):
        below = f"{path}.{key}"
        origin = _origin(loaded, below, given=True)
        clear = value.get_secret_value() if isinstance(value, SecretStr) else shown
        safe = hide(str(key), clear) if isinstance(clear, str) else clear
        hidden = origin.secret or is_sealed(info.metadata, str(key))
        yield Row(below, MASK if hidden else _safe(loaded, safe), origin)


def _origin(loaded: Loaded, path: str, *, given: bool) -> Origin:
    parent = path.rpartition(".")[0]
    if path not in loaded.origins and given:
        # a section that was written in short, as a single word
        return loaded.origin(parent)
    return loaded.origin(path)


def _safe(loaded: Loaded, value: Any) -> Any:
    if isinstance(value, str):
        # a default may be made of a value that is secret
        return loaded.mask(hide_credentials(value))
    return [_safe(loaded, item) for item in value] if isinstance(value, list) else value
