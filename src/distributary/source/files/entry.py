"""A folder or bucket of change files as an entry of the table of sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from distributary.config.lake import LakeConfig
from distributary.config.pipeline_config import PipelineConfig
from distributary.config.sources.base import storage_options_of
from distributary.config.sources.files import FileNotifications, FilesSourceConfig
from distributary.errors import SourceError
from distributary.model.check import Check, CheckState
from distributary.model.names import printable
from distributary.observe.log_format import counted, size
from distributary.registry.folder_files import file_schemas_folder
from distributary.registry.record_schemas import FileSchemas
from distributary.source.files.sample import sample_files
from distributary.source.files.source import FilesSource
from distributary.source.source_entry import SourceEntry
from distributary.source.source_sample import Sample
from distributary.store.base import absolute


class FilesEntry(SourceEntry[FilesSourceConfig]):
    """Change files that another system writes."""

    def open(self, settings: FilesSourceConfig, config: PipelineConfig) -> FilesSource:
        """Return the source that finds and reads the files."""
        checkpoint = absolute(config.checkpoint_path)
        return FilesSource(
            settings,
            folder=f"{checkpoint}/files",
            schemas=file_schemas_folder(checkpoint),
            storage_options=storage_options_of(settings, config.lake),
            max_payload_bytes=config.limits.max_payload_bytes,
        )

    def sample(self, settings: FilesSourceConfig) -> Sample:
        """Read events of the first and the last file."""
        return sample_files(settings.root, settings.options)

    def checks(
        self, settings: FilesSourceConfig, config: PipelineConfig
    ) -> Iterator[tuple[str, Callable[[], Check]]]:
        """Yield the check of the folder and its files."""
        yield "source", lambda: _files(settings, config.lake)
        wanted = settings.notifications
        if wanted is not None:
            yield "notifications", lambda: _queue(wanted)

    def schemas(self, settings: FilesSourceConfig, config: PipelineConfig) -> FileSchemas | None:
        """Return the schemas of Avro files and plain Parquet files; None for other formats."""
        if not settings.has_schemas:
            return None
        return FileSchemas(file_schemas_folder(absolute(config.checkpoint_path)))


ENTRY = FilesEntry()


def _queue(config: FileNotifications) -> Check:
    """Check that the topic of notifications is there; without it everything is listed."""
    from distributary.source.files.kafka_queue import KafkaQueue

    needed = "a topic with a message for each new object"
    try:
        end = KafkaQueue(config).end()
    except SourceError as error:
        return Check(
            "notifications",
            CheckState.WARN,
            f"{error.what}: {error.evidence or config.bootstrap_servers}",
            needed,
            "correct source.notifications; until then each batch lists the whole bucket",
        )
    found = counted(len(end.offsets), "partition")
    return Check("notifications", CheckState.PASS, f"{config.topic} has {found}", needed)


def _files(source: FilesSourceConfig, lake: LakeConfig) -> Check:
    """Check that the folder or bucket answers, that a file matches, and that it can be opened."""
    options = storage_options_of(source, lake)
    # nothing is kept: neither what was found nor a schema
    wanted, others = FilesSource(source, folder="", schemas="", storage_options=options).survey()
    needed = f"files in <table>/yyyy/mm/dd/hh/mm/, or anywhere with a suffix of {source.format}"
    if wanted:
        held = size(sum(file.size for file in wanted))
        found = f"{counted(len(wanted), 'file')}, {held}, the first is {printable(wanted[0].path)}"
        return Check("source", CheckState.PASS, f"{source.root} has {found}", needed)
    return Check(
        "source",
        CheckState.WARN,
        f"{source.root} has {counted(others, 'file')}, and none of them is read"
        if others
        else f"{source.root} has no file yet",
        needed,
        "compare path, format, include, exclude and start_date of source with the files",
    )
