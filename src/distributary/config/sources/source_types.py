"""The table of sources: the settings of each, and the module that reads it.

A new source is its settings beside this module, its implementation in `source/`, and one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, get_args

from pydantic import Field

from distributary.config.cdc import CARRIERS
from distributary.config.sources.base import SourceConfig
from distributary.config.sources.delta import DeltaSourceConfig
from distributary.config.sources.files import FilesSourceConfig
from distributary.config.sources.kafka import KafkaSourceConfig

SOURCES: Mapping[type[SourceConfig], str] = {
    KafkaSourceConfig: "distributary.source.kafka.entry",
    DeltaSourceConfig: "distributary.source.delta.entry",
    FilesSourceConfig: "distributary.source.files.entry",
}
"""By the settings of a source: the module with its `ENTRY`, which is imported when it is used."""

if TYPE_CHECKING:
    # code outside of a source's own modules knows what all sources have in common
    Source = SourceConfig
else:
    Source = Annotated[reduce(or_, SOURCES), Field(discriminator="type")]


def types_bringing(change_format: str) -> tuple[str, ...]:
    """Return the types of source that bring change data in this format."""
    carriers = CARRIERS[change_format]
    return tuple(type_of(each) for each in SOURCES if each.carrier in carriers)


def type_of(settings: type[SourceConfig]) -> str:
    """Return the word for a source in `source.type`."""
    return str(get_args(settings.model_fields["type"].annotation)[0])


def settings_of(type_: str) -> type[SourceConfig]:
    """Return the settings of the sources of this type."""
    return next(settings for settings in SOURCES if type_of(settings) == type_)
