"""A registry as it would be with one more schema; nothing is registered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from distributary.config.pipeline import PipelineConfig
from distributary.errors import ConfigError
from distributary.model.schema import Format, SubjectVersion, WriterSchema
from distributary.registry.bundled import is_bundled
from distributary.registry.compile import compile_schema
from distributary.registry.files import FileRegistry
from distributary.registry.http import HttpRegistry
from distributary.registry.references import Reference, gather

PROPOSED_ID = 2**31 - 1
"""What the schema goes by in plans: the last id there can be, which no registry will have given."""

Judge = FileRegistry | HttpRegistry
"""A registry that can say whether it would take a schema."""

_IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"\n]+)"\s*;', re.MULTILINE)


def judge_of(config: PipelineConfig) -> Judge:
    """The pipeline's registry itself, without the copy on disk that a run keeps of it."""
    settings = config.registry
    if settings is None or config.cdc is not None:
        what = (
            "change data brings" if config.cdc is not None else "without a registry records bring"
        )
        raise ConfigError(
            f"{what} schemas along, and there is none to propose",
            where="cdc" if config.cdc is not None else "registry",
            next_step="use plan without --with-schema",
        )
    return HttpRegistry(settings) if settings.path is None else FileRegistry(settings.path)


@dataclass(frozen=True, slots=True)
class ProposedSchema:
    """A compiled schema that has no id yet."""

    schema: WriterSchema
    text: str
    references: tuple[Reference, ...]


def compile_proposed(registry: Judge, subject: str, text: str, format: Format) -> ProposedSchema:
    """Compile a text as the next version of a subject, which may be empty where none is known.

    It references what the newest version does; an import that is new is looked up under its own
    name, as serializers register it.

    Raises:
        InvalidSchemaError: When it does not compile.
    """
    known = registry.versions(subject) if subject else ()
    kept = registry.references(registry.latest(subject).id) if known else ()
    references = (*kept, *_by_name(registry, text, {r.name for r in kept}, format))

    def fetch(reference: Reference) -> tuple[str, tuple[Reference, ...]]:
        found = registry.version(reference.subject, reference.version)
        return registry.text(found.id), registry.references(found.id)

    compiled = compile_schema(text, format=format, imports=gather(references, fetch=fetch))
    place = SubjectVersion(subject, known[-1] + 1 if known else 1)
    schema = WriterSchema(
        PROPOSED_ID, format, compiled.body, compiled.message, (place,), compiled.messages
    )
    return ProposedSchema(schema, text, references)


def _by_name(registry: Judge, text: str, known: set[str], format: Format) -> Iterator[Reference]:
    names = _IMPORT.findall(text) if format is Format.PROTOBUF else ()
    for name in dict.fromkeys(names):
        if name not in known and not is_bundled(name):
            versions = registry.versions(name)
            if versions:
                yield Reference(name, name, versions[-1])


def read_schema(path: Path) -> str:
    """The text of a file; ConfigError where there is none."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the proposed schema's file cannot be read",
            where=str(path),
            evidence=getattr(error, "strerror", None) or "it is not UTF-8",
            next_step="check its path and rights",
        ) from None


@dataclass(frozen=True, slots=True)
class ProposedRegistry:
    """Knows the proposed schema by its id, and everything else as the registry does."""

    registry: Judge
    proposed: WriterSchema

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id."""
        return self.proposed if schema_id == PROPOSED_ID else self.registry.by_id(schema_id)

    def by_guid(self, guid: UUID) -> WriterSchema:
        """The schema with this GUID."""
        return self.registry.by_guid(guid)

    def latest(self, subject: str) -> WriterSchema:
        """The newest version that is registered: records were not written with the proposed one."""
        return self.registry.latest(subject)

    def version(self, subject: str, version: int) -> WriterSchema:
        """One registered version."""
        return self.registry.version(subject, version)

    def versions(self, subject: str) -> tuple[int, ...]:
        """The registered versions."""
        return self.registry.versions(subject)

    def subjects(self) -> tuple[str, ...]:
        """The subjects that are there."""
        return self.registry.subjects()

    def text(self, schema_id: int) -> str:
        """A registered schema as its author wrote it."""
        return self.registry.text(schema_id)
