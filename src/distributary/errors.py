"""All errors of Distributary, and all codes of dead letters.

DistributaryError
├── ConfigError            the pipeline file or the command line is wrong        exit 2
├── SetupError             Java, connectors or a package are missing             exit 1
├── RegistryError
│   ├── RegistryUnavailableError   unreachable, try again                        exit 75
│   ├── SchemaNotFoundError        no such id, subject or version
│   ├── InvalidSchemaError         the text does not compile
│   └── IncompatibleSchemaError    the compatibility level refuses it
├── SourceError
│   └── SourceUnavailableError     unreachable, try again                        exit 75
├── DecodeError            raised only for a whole schema, never for one record
├── EvolutionError         a schema change that the policy refuses
│   └── SchemaGrewError    a declarative update must start again, try again      exit 75
├── CheckpointError
│   ├── FencedError        another process has taken over this checkpoint
│   ├── OwnedError         another process is running on this checkpoint         exit 75
│   ├── PausedError        a person has paused the pipeline                      exit 75
│   ├── DivergedError      the checkpoint and the tables disagree
│   └── TableBehindError   a table lacks batches that were settled
├── ExpectationError       rows break a rule whose action is `fail`
├── AccountingError        read != written + dead-lettered + parked + skipped + filtered
├── CatalogError           a table cannot be registered under its name
│   └── CatalogUnavailableError    the catalog did not answer, try again         exit 75
├── DeployError            a job, a file or a grant cannot be installed
│   └── DeployUnavailableError     the workspace did not answer, try again       exit 75
└── PublishError
    ├── LakeUnavailableError       cannot reach or write the lake, try again     exit 75
    ├── SourceWentBackError        a source goes back in its log for an unknown reason
    ├── OutsideLakeError   a path or a link in the lake leads out of it
    ├── DamagedFileError   a data file of a table was changed after it was written
    └── StagedFileError    a staged file is gone or changed before its commit; staged again
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any


class ErrorCode(StrEnum):
    """The codes of errors, the same in exceptions, dead letters, metrics, dashboard and docs."""

    # About the installation and the command line.
    CONFIG_INVALID = "CONFIG_INVALID"
    CONFIG_MISSING_VARIABLE = "CONFIG_MISSING_VARIABLE"
    CONFIG_UNREADABLE = "CONFIG_UNREADABLE"
    CONFIG_SYNTAX = "CONFIG_SYNTAX"
    CONFIG_UNKNOWN_KEY = "CONFIG_UNKNOWN_KEY"
    CONFIG_MISSING_KEY = "CONFIG_MISSING_KEY"
    CONFIG_DEPRECATED = "CONFIG_DEPRECATED"
    JAVA_MISSING = "JAVA_MISSING"
    CONNECTORS_MISSING = "CONNECTORS_MISSING"
    EXTRA_MISSING = "EXTRA_MISSING"
    PORT_TAKEN = "PORT_TAKEN"
    SERVICE_FAILED = "SERVICE_FAILED"
    NOT_FOUND = "NOT_FOUND"
    FILE_NOT_TRUSTED = "FILE_NOT_TRUSTED"
    CONFIRMATION_NEEDED = "CONFIRMATION_NEEDED"
    DEPLOY_CONFLICT = "DEPLOY_CONFLICT"
    DEPLOY_REFUSED = "DEPLOY_REFUSED"
    DEPLOY_UNAVAILABLE = "DEPLOY_UNAVAILABLE"
    DEPLOY_UNFIT = "DEPLOY_UNFIT"
    GRANT_REFUSED = "GRANT_REFUSED"
    TOKEN_NEEDED = "TOKEN_NEEDED"  # noqa: S105
    ACCESS_DENIED = "ACCESS_DENIED"
    ACTION_RUNNING = "ACTION_RUNNING"
    QUERY_INVALID = "QUERY_INVALID"
    QUERY_STOPPED = "QUERY_STOPPED"
    CUT_LOST = "CUT_LOST"

    # About the systems around a run.
    REGISTRY_UNAVAILABLE = "REGISTRY_UNAVAILABLE"
    REGISTRY_AUTH = "REGISTRY_AUTH"
    REGISTRY_REFUSED = "REGISTRY_REFUSED"
    REGISTRY_GARBAGE = "REGISTRY_GARBAGE"
    SCHEMA_NOT_FOUND = "SCHEMA_NOT_FOUND"
    SCHEMA_INVALID = "SCHEMA_INVALID"
    SCHEMA_INCOMPATIBLE = "SCHEMA_INCOMPATIBLE"
    SOURCE_UNAVAILABLE = "SOURCE_UNAVAILABLE"
    SOURCE_INVALID = "SOURCE_INVALID"
    SOURCE_UNCLEAR = "SOURCE_UNCLEAR"
    SOURCE_DATA_LOST = "SOURCE_DATA_LOST"
    SOURCE_REPLACED = "SOURCE_REPLACED"
    SOURCE_WENT_BACK = "SOURCE_WENT_BACK"
    SOURCE_BUSY = "SOURCE_BUSY"
    SHARD_WAITING = "SHARD_WAITING"
    LAKE_UNAVAILABLE = "LAKE_UNAVAILABLE"
    OUTSIDE_LAKE = "OUTSIDE_LAKE"
    DATA_FILE_DAMAGED = "DATA_FILE_DAMAGED"
    SPARK_FAILED = "SPARK_FAILED"
    CATALOG_UNAVAILABLE = "CATALOG_UNAVAILABLE"
    CATALOG_REFUSED = "CATALOG_REFUSED"
    CATALOG_CONFLICT = "CATALOG_CONFLICT"

    # About one run.
    PIPELINE_PAUSED = "PIPELINE_PAUSED"
    CHECKPOINT_OWNED = "CHECKPOINT_OWNED"
    CHECKPOINT_FENCED = "CHECKPOINT_FENCED"
    CHECKPOINT_DIVERGED = "CHECKPOINT_DIVERGED"
    CHECKPOINT_INVALID = "CHECKPOINT_INVALID"
    CHECKPOINT_LOST = "CHECKPOINT_LOST"
    LAKE_BEHIND = "LAKE_BEHIND"
    TABLE_BEHIND = "TABLE_BEHIND"
    BACKUP_REFUSED = "BACKUP_REFUSED"
    BACKUP_INVALID = "BACKUP_INVALID"
    RESTORE_REFUSED = "RESTORE_REFUSED"
    RESTORE_UNFINISHED = "RESTORE_UNFINISHED"
    ERASE_REFUSED = "ERASE_REFUSED"
    ACCOUNTING_BROKEN = "ACCOUNTING_BROKEN"
    COMMIT_FAILED = "COMMIT_FAILED"
    STAGED_FILE_MISSING = "STAGED_FILE_MISSING"
    EVOLUTION_REFUSED = "EVOLUTION_REFUSED"
    SCHEMA_GREW = "SCHEMA_GREW"
    EXPECTATION_REFUSED = "EXPECTATION_REFUSED"
    BATCH_FAILED = "BATCH_FAILED"
    PROCESS_DIED = "PROCESS_DIED"
    INTERNAL = "INTERNAL"

    # About one record: these are the reasons of dead letters.
    NULL_VALUE = "NULL_VALUE"
    EMPTY_VALUE = "EMPTY_VALUE"
    BAD_MAGIC = "BAD_MAGIC"
    WIRE_HEADER_TRUNCATED = "WIRE_HEADER_TRUNCATED"
    BAD_MESSAGE_INDEX = "BAD_MESSAGE_INDEX"
    AMBIGUOUS_MESSAGE = "AMBIGUOUS_MESSAGE"
    NOT_AN_ENVELOPE = "NOT_AN_ENVELOPE"
    MISSING_TYPE = "MISSING_TYPE"
    MISSING_SCHEMA_ID = "MISSING_SCHEMA_ID"
    MISSING_PAYLOAD = "MISSING_PAYLOAD"
    UNKNOWN_SCHEMA_ID = "UNKNOWN_SCHEMA_ID"
    WRONG_SUBJECT = "WRONG_SUBJECT"
    UNUSABLE_SCHEMA = "UNUSABLE_SCHEMA"
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    NOT_JSON = "NOT_JSON"
    NOT_MSGPACK = "NOT_MSGPACK"
    DUPLICATE_KEY = "DUPLICATE_KEY"
    INVALID_NAME = "INVALID_NAME"
    UNKNOWN_EXTENSION = "UNKNOWN_EXTENSION"
    INVALID_NUMBER = "INVALID_NUMBER"
    PAYLOAD_TRUNCATED = "PAYLOAD_TRUNCATED"
    TRAILING_BYTES = "TRAILING_BYTES"
    INVALID_INDEX = "INVALID_INDEX"
    INVALID_LENGTH = "INVALID_LENGTH"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    PAYLOAD_EXPANDS = "PAYLOAD_EXPANDS"
    NESTING_TOO_DEEP = "NESTING_TOO_DEEP"
    INVALID_UTF8 = "INVALID_UTF8"
    VALUE_OUT_OF_RANGE = "VALUE_OUT_OF_RANGE"
    CRASHED_DECODER = "CRASHED_DECODER"
    FILE_UNREADABLE = "FILE_UNREADABLE"
    FILE_TRUNCATED = "FILE_TRUNCATED"
    FILE_CORRUPT = "FILE_CORRUPT"
    FILE_TOO_LARGE = "FILE_TOO_LARGE"
    TYPE_NAME_EMPTY = "TYPE_NAME_EMPTY"
    TYPE_NAME_TOO_LONG = "TYPE_NAME_TOO_LONG"
    TYPE_NAME_UNSAFE_PATH = "TYPE_NAME_UNSAFE_PATH"
    TYPE_NAME_UNSAFE_TEXT = "TYPE_NAME_UNSAFE_TEXT"
    TYPE_NAME_UNSAFE_MARKUP = "TYPE_NAME_UNSAFE_MARKUP"
    TYPE_NAME_UNSAFE_SYMBOL = "TYPE_NAME_UNSAFE_SYMBOL"
    TYPE_NAME_RESERVED = "TYPE_NAME_RESERVED"
    # No longer used, but dead letters of earlier versions have it.
    TYPE_NAME_CASE_CLASH = "TYPE_NAME_CASE_CLASH"
    TOO_MANY_TYPES = "TOO_MANY_TYPES"
    NEW_TYPE_REFUSED = "NEW_TYPE_REFUSED"
    NEW_FIELD_REFUSED = "NEW_FIELD_REFUSED"
    TYPE_CHANGE_REFUSED = "TYPE_CHANGE_REFUSED"
    PARTITION_REFUSED = "PARTITION_REFUSED"
    EXPECTATION_FAILED = "EXPECTATION_FAILED"
    SHAPE_FAILED = "SHAPE_FAILED"

    # About one change event: these are reasons of dead letters too.
    NO_SOURCE_METADATA = "NO_SOURCE_METADATA"
    NO_PAYLOAD = "NO_PAYLOAD"
    BAD_SOURCE_TIME = "BAD_SOURCE_TIME"
    BAD_POSITION = "BAD_POSITION"
    KEY_NOT_IN_PAYLOAD = "KEY_NOT_IN_PAYLOAD"
    NULL_KEY = "NULL_KEY"


class DistributaryError(Exception):
    """An error with what happened, where, the evidence and the next step.

    Safe to print and pickle.
    """

    code: ErrorCode = ErrorCode.INTERNAL
    retryable: bool = False
    exit_code: int = 1

    def __init__(
        self,
        what: str,
        *,
        code: ErrorCode | None = None,
        where: str = "",
        evidence: str = "",
        next_step: str = "",
        **context: Any,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.evidence = evidence
        self.next_step = next_step
        self.context: dict[str, str] = {key: str(value) for key, value in context.items()}
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        parts = [f"{self.code}: {self.what}"]
        parts += [f"  at: {self.where}"] if self.where else []
        parts += [f"  seen: {self.evidence}"] if self.evidence else []
        parts += [f"  next: {self.next_step}"] if self.next_step else []
        return "\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the parts of the error for `--json` and the ledger."""
        return {
            "code": str(self.code),
            "what": self.what,
            "where": self.where,
            "evidence": self.evidence,
            "next_step": self.next_step,
            "retryable": self.retryable,
            "context": dict(self.context),
        }


class ConfigError(DistributaryError):
    """An error in the pipeline file or the command line."""

    code = ErrorCode.CONFIG_INVALID
    exit_code = 2


def missing(
    what: str,
    name: str,
    known: Iterable[str],
    *,
    where: str = "",
    command: str = "distributary tables",
) -> ConfigError:
    """Return the error for an unknown name, with suggestions of similar names."""
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(known), n=3)
    return ConfigError(
        what,
        code=ErrorCode.NOT_FOUND,
        where=where,
        evidence=repr(name[:100]),
        next_step=f"did you mean {', '.join(near)}?" if near else command,
    )


class SetupError(DistributaryError):
    """A missing installation: Java, connectors or a package."""

    code = ErrorCode.JAVA_MISSING


class RegistryError(DistributaryError):
    """An error of the schema registry."""

    code = ErrorCode.SCHEMA_NOT_FOUND


class RegistryUnavailableError(RegistryError):
    """A registry that did not answer: never a reason to dead-letter a record."""

    code = ErrorCode.REGISTRY_UNAVAILABLE
    retryable = True
    exit_code = 75


class SchemaNotFoundError(RegistryError):
    """A schema id, subject or version that the registry does not have."""

    code = ErrorCode.SCHEMA_NOT_FOUND


class InvalidSchemaError(RegistryError):
    """A schema whose text does not compile."""

    code = ErrorCode.SCHEMA_INVALID


class IncompatibleSchemaError(RegistryError):
    """A new schema version that the subject's compatibility level refuses."""

    code = ErrorCode.SCHEMA_INCOMPATIBLE


class SourceError(DistributaryError):
    """A source that cannot be read as configured."""

    code = ErrorCode.SOURCE_INVALID


class SourceUnavailableError(SourceError):
    """A source that did not answer."""

    code = ErrorCode.SOURCE_UNAVAILABLE
    retryable = True
    exit_code = 75


class DecodeError(DistributaryError):
    """A schema for which no decoder can be built."""

    code = ErrorCode.UNUSABLE_SCHEMA


class EvolutionError(DistributaryError):
    """A schema change for which the policy says `fail`."""

    code = ErrorCode.EVOLUTION_REFUSED


class SchemaGrewError(EvolutionError):
    """A record that needs columns which a declarative update did not know when it began."""

    code = ErrorCode.SCHEMA_GREW
    retryable = True
    exit_code = 75


class CheckpointError(DistributaryError):
    """A checkpoint that cannot be used as it is."""

    code = ErrorCode.CHECKPOINT_INVALID


class FencedError(CheckpointError):
    """A checkpoint that another process has taken over: this process must write nothing more."""

    code = ErrorCode.CHECKPOINT_FENCED


class OwnedError(CheckpointError):
    """A checkpoint that another live process uses."""

    code = ErrorCode.CHECKPOINT_OWNED
    exit_code = 75


class PausedError(CheckpointError):
    """A run to the end of the source of a pipeline that a person has paused."""

    code = ErrorCode.PIPELINE_PAUSED
    exit_code = 75


class DivergedError(CheckpointError):
    """A batch number that is marked as done, but with other records."""

    code = ErrorCode.CHECKPOINT_DIVERGED


class TableBehindError(CheckpointError):
    """A table that is gone, or is older than the last batch settled for it."""

    code = ErrorCode.TABLE_BEHIND


class ExpectationError(DistributaryError):
    """A batch whose rows break a rule with the action `fail`: nothing of it is written."""

    code = ErrorCode.EXPECTATION_REFUSED


class AccountingError(DistributaryError):
    """A batch whose counts do not add up: it fails instead of committing."""

    code = ErrorCode.ACCOUNTING_BROKEN


class CatalogError(DistributaryError):
    """An entry that the catalog refuses; the table itself is correct."""

    code = ErrorCode.CATALOG_REFUSED


class CatalogUnavailableError(CatalogError):
    """A catalog that did not answer."""

    code = ErrorCode.CATALOG_UNAVAILABLE
    retryable = True
    exit_code = 75


class DeployError(DistributaryError):
    """A job, a file or a grant that cannot be installed."""

    code = ErrorCode.DEPLOY_REFUSED


class DeployUnavailableError(DeployError):
    """A workspace that did not answer, or asked to retry later."""

    code = ErrorCode.DEPLOY_UNAVAILABLE
    retryable = True
    exit_code = 75


class PublishError(DistributaryError):
    """A table that could not be committed to."""

    code = ErrorCode.COMMIT_FAILED
    retryable = True


class LakeUnavailableError(PublishError):
    """A lake that cannot be reached or written."""

    code = ErrorCode.LAKE_UNAVAILABLE
    exit_code = 75


class SourceWentBackError(PublishError):
    """A source that goes back in its log, while the events do not say why."""

    code = ErrorCode.SOURCE_WENT_BACK
    retryable = False


class OutsideLakeError(PublishError):
    """A path or link that leads out of the lake: nothing there is read, written or removed."""

    code = ErrorCode.OUTSIDE_LAKE
    retryable = False


class DamagedFileError(PublishError):
    """A data file that was changed after it was written; reading it again does not help."""

    code = ErrorCode.DATA_FILE_DAMAGED
    retryable = False


class StagedFileError(PublishError):
    """A staged file that is gone or changed."""

    code = ErrorCode.STAGED_FILE_MISSING


_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_QUERY = re.compile(r"(://[^\s?\"']*)\?[^\s\"']*")
_LOGIN = re.compile(r"://[^\s/@\"']+@")
_LONGEST = 400
_MOST_LINES = 6


def clean(text: str) -> str:
    """Return an engine's message as one line without colours, stack traces and secrets."""
    text = _LOGIN.sub("://***@", _QUERY.sub(r"\1?***", _ESCAPES.sub("", text)))
    lines = [line.strip(" ↳\t") for line in text.split("\n")]
    kept = [line for line in lines if line and not re.match(r"(\d+: |at )", line)]
    if len(kept) > _MOST_LINES:
        # Messages begin with what happened and end with the cause.
        half, room = _MOST_LINES // 2, _LONGEST // _MOST_LINES - len("; ")
        kept = [line[:room] for line in (*kept[:half], *kept[-half:])]
    return "".join(c if c.isprintable() else " " for c in "; ".join(kept))[:_LONGEST]


# The meanings of codes and words, from the documentation pages in the package.

_ANCHOR = re.compile(r'<a id="([A-Z0-9_]+)"></a>')
_CELL = re.compile(r"(?<!\\)\|")
_HEADINGS = frozenset({"word", "code"})


@cache
def meanings() -> dict[str, tuple[str, str]]:
    """Return the meaning and the remedy of each error code."""
    by_code: dict[str, tuple[str, str]] = {}
    for line in _page("errors.md"):
        codes, cells = _ANCHOR.findall(line), _cells(line)
        if codes and len(cells) >= 2:
            meaning = cells[1] if len(cells) > 2 else f"the record {cells[1]}"
            by_code |= {code: (meaning, cells[2] if len(cells) > 2 else "") for code in codes}
    return by_code


@cache
def glossary() -> dict[str, str]:
    """Return the meaning of each word of the glossary."""
    rows = [_cells(line) for line in _page("glossary.md") if line.startswith("| ")]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[0] not in _HEADINGS}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in _CELL.split(line.strip().strip("|"))]


def _page(name: str) -> list[str]:
    packed = Path(__file__).parent / name
    if packed.is_file():
        return packed.read_text("utf-8").splitlines()
    # In an editable install, the page is in the docs folder.
    source = Path(__file__).parents[2] / "docs" / name
    return source.read_text("utf-8").splitlines() if source.is_file() else []
