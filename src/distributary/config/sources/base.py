"""The settings of a source, as the rest of the program uses them.

The other half of a source, which reads records, is its `SourceEntry` (`source/source_entry.py`).
`config/sources/source_types.py` lists both halves of every source.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self
from urllib.parse import urlsplit

from distributary.config.base import Conflict, Section
from distributary.config.cdc import Carrier
from distributary.model.dataset import Dataset
from distributary.model.refusal import Refusal
from distributary.store.environment import with_environment

if TYPE_CHECKING:
    from distributary.config.lake import LakeConfig
    from distributary.config.message import PayloadConfig
    from distributary.config.pipeline_config import PipelineConfig

# A record's parts, by the names that a raw record has for them.
RECORD_PARTS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")


class SourceConfig(Section):
    """The settings of a source. Each answer has a default that fits most sources."""

    in_order: ClassVar[bool] = True
    """Whether the changes of one row arrive in the order in which they were made."""
    carrier: ClassVar[Carrier] = "messages"
    """The carrier of change events, which decides the formats that they may have."""
    batch_limit: ClassVar[tuple[str, int]] = ("max_records_per_batch", 10_000)
    """The setting that limits a batch, and its value for the plan that `init` shows."""
    trial_sections: ClassVar[Mapping[str, Any]] = {
        "payload": {"format": "json"},
        "tables": {"each": "any"},
    }
    """Sections that complete a file of which only the source is known."""
    task_module: ClassVar[str] = ""
    """The module that tasks read with, which workers import before their first task; or empty."""
    entry_module: ClassVar[str] = ""
    """The module with the `ENTRY` of a source that another package brings."""
    irrecoverable: ClassVar[Refusal | None] = None
    """The reason why a lost checkpoint cannot be restored from the ledger; None if it can."""
    no_flows: ClassVar[str] = ""
    """The reason why a declarative pipeline cannot read the source; empty if it can."""
    unknown_in_flows: ClassVar[frozenset[str]] = frozenset()
    """Metadata columns that Spark's stream of the source cannot fill."""

    type: str
    """Kind of source."""

    @property
    def brings_files(self) -> bool:
        """Return whether records come in files that another system writes."""
        return self.carrier == "files"

    @property
    def known_topics(self) -> tuple[str, ...]:
        """Return the topics that are known before any record is read."""
        return ()

    def topics_among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the topics to read, if `names` are all topics that there may be."""
        return self.known_topics

    @property
    def servers(self) -> str:
        """Return the addresses of the servers that are asked for records; empty without any."""
        return ""

    @property
    def skips_tombstones(self) -> bool:
        """Return true when records with a key and no value are skipped."""
        return False

    @property
    def own_payload(self) -> PayloadConfig | None:
        """Return the format of the records; None if the section `payload` states it."""
        return None

    @property
    def table_folder(self) -> str | None:
        """Return the local folder of the table that is read; None for any other source."""
        return None

    @property
    def record_fields(self) -> Mapping[str, str]:
        """Return what the source calls each part of a record that it has."""
        return {name: name for name in RECORD_PARTS}

    def conflicts_in(self, config: PipelineConfig) -> Iterator[Conflict]:
        """Yield settings elsewhere in the file that do not fit this source."""
        yield from ()

    @abstractmethod
    def datasets(self, topics: Iterable[str]) -> dict[str, Dataset]:
        """Return what is read, by topic; `topics` were seen in records.

        A source without topics returns one dataset, under an empty name.
        """

    def absolute(self) -> Self:
        """Return the settings with absolute paths, which are valid in every working directory."""
        return self


class StoredSource(Protocol):
    """The settings of a source in a folder or a bucket."""

    @property
    def address(self) -> str:
        """Return the folder or the address of what is read."""
        ...

    @property
    def options(self) -> dict[str, str]:
        """Return the storage options in clear; they hold secrets."""
        ...


_CREDENTIAL = re.compile(
    "key|secret|token|password|credential|account|client|tenant|sas|identity|role|profile|signature"
)


def storage_options_of(source: StoredSource, lake: LakeConfig) -> dict[str, str]:
    """Return the storage options for the bucket of a source, in clear; they hold secrets.

    Options that the source does not set are the lake's, unless the two are in different kinds of
    stores. Credentials are never mixed: if the source sets any, the lake's are not used. Tasks on
    other machines get these options, so those of the environment are among them.
    """
    return with_environment(_options_of(source, lake), source.address)


def _options_of(source: StoredSource, lake: LakeConfig) -> dict[str, str]:
    options = source.options
    # the first letter of the scheme identifies the kind of store: s3 and s3a, gs, abfs and az
    if not lake.is_local and urlsplit(lake.path).scheme[:1] != urlsplit(source.address).scheme[:1]:
        return options
    names = {name.lower() for name in options}
    has_credentials = any(_CREDENTIAL.search(name) for name in names)
    inherited = {
        name: value
        for name, value in lake.options.items()
        if name.lower() not in names and not (has_credentials and _CREDENTIAL.search(name.lower()))
    }
    return inherited | options
