"""The table of sources: the settings of each, and the module that reads it.

A new source is its settings beside this module, its implementation in `source/`, and one line here.
Other packages bring theirs by entry points (`config/plugged.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from distributary.config.cdc import CARRIERS
from distributary.config.plugged import SOURCES_GROUP, load_plugged, plugged
from distributary.config.sources.base import SourceConfig
from distributary.config.sources.delta import DeltaSourceConfig
from distributary.config.sources.files import FilesSourceConfig
from distributary.config.sources.kafka import KafkaSourceConfig

SOURCES: Mapping[type[SourceConfig], str] = {
    KafkaSourceConfig: "distributary.source.kafka.entry",
    DeltaSourceConfig: "distributary.source.delta.entry",
    FilesSourceConfig: "distributary.source.files.entry",
}
"""The module with the `ENTRY` of each source, by its settings; imported on first use."""


def _or_plugged(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate the settings of a source that an installed package brings by its own class."""
    if isinstance(value, Mapping) and isinstance(name := value.get("type"), str):
        if name not in map(type_of, SOURCES) and name in plugged(SOURCES_GROUP):
            return settings_of(name).model_validate(value)
    return validate(value)


if TYPE_CHECKING:
    # code outside of a source's own modules knows what all sources have in common
    Source = SourceConfig
else:
    Source = Annotated[
        Annotated[reduce(or_, SOURCES), Field(discriminator="type")], WrapValidator(_or_plugged)
    ]


def types_bringing(change_format: str) -> tuple[str, ...]:
    """Return the types of source that bring change data in this format."""
    carriers = CARRIERS[change_format]
    return tuple(type_of(each) for each in SOURCES if each.carrier in carriers)


def type_of(settings: type[SourceConfig]) -> str:
    """Return the word for a source in `source.type`."""
    return str(get_args(settings.model_fields["type"].annotation)[0])


def settings_of(type_: str) -> type[SourceConfig]:
    """Return the settings of the sources of this type."""
    known = (settings for settings in SOURCES if type_of(settings) == type_)
    return next(known, None) or load_plugged(SOURCES_GROUP, type_)


def entry_module_of(settings: type[SourceConfig]) -> str:
    """Return the module with the `ENTRY` of the sources with these settings."""
    return SOURCES.get(settings) or settings.entry_module
