"""Every error Distributary raises, and every code a record can be dead-lettered with.

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
├── EvolutionError         a policy says `fail`
│   └── SchemaGrewError    a declarative update must start over, try again       exit 75
├── CheckpointError
│   ├── FencedError        another process took this checkpoint over
│   ├── OwnedError         another process is running on this checkpoint         exit 75
│   ├── DivergedError      the checkpoint and the tables tell different stories
│   └── TableBehindError   a table does not hold batches that were settled
├── ExpectationError       rows break a rule whose action is `fail`
├── AccountingError        read != written + dead-lettered + parked
├── CatalogError           a table cannot be registered under its name
│   └── CatalogUnavailableError    the catalog did not answer, try again         exit 75
├── DeployError            a job, a file or a grant cannot be put where it belongs
│   └── DeployUnavailableError     the workspace did not answer, try again       exit 75
└── PublishError
    ├── LakeUnavailableError       cannot reach or write the lake, try again     exit 75
    ├── SourceWentBackError        a source goes back in its log, for no clear reason
    ├── OutsideLakeError   a path or a link in the lake leads out of it
    ├── DamagedFileError   a data file of a table is not what was written
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
    """One name from exception to dead letter, metric, dashboard and docs page."""

    # about the installation and the command line
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

    # about the world around a run
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
    SHARD_WAITING = "SHARD_WAITING"
    LAKE_UNAVAILABLE = "LAKE_UNAVAILABLE"
    OUTSIDE_LAKE = "OUTSIDE_LAKE"
    DATA_FILE_DAMAGED = "DATA_FILE_DAMAGED"
    SPARK_FAILED = "SPARK_FAILED"
    CATALOG_UNAVAILABLE = "CATALOG_UNAVAILABLE"
    CATALOG_REFUSED = "CATALOG_REFUSED"
    CATALOG_CONFLICT = "CATALOG_CONFLICT"

    # about one run
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
    ACCOUNTING_BROKEN = "ACCOUNTING_BROKEN"
    COMMIT_FAILED = "COMMIT_FAILED"
    STAGED_FILE_MISSING = "STAGED_FILE_MISSING"
    EVOLUTION_REFUSED = "EVOLUTION_REFUSED"
    SCHEMA_GREW = "SCHEMA_GREW"
    EXPECTATION_REFUSED = "EXPECTATION_REFUSED"
    BATCH_FAILED = "BATCH_FAILED"
    PROCESS_DIED = "PROCESS_DIED"
    INTERNAL = "INTERNAL"

    # about one record: these are dead-letter reasons
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
    DUPLICATE_KEY = "DUPLICATE_KEY"
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
    # no longer given: letters of earlier versions have it
    TYPE_NAME_CASE_CLASH = "TYPE_NAME_CASE_CLASH"
    TOO_MANY_TYPES = "TOO_MANY_TYPES"
    NEW_TYPE_REFUSED = "NEW_TYPE_REFUSED"
    NEW_FIELD_REFUSED = "NEW_FIELD_REFUSED"
    TYPE_CHANGE_REFUSED = "TYPE_CHANGE_REFUSED"
    PARTITION_REFUSED = "PARTITION_REFUSED"
    EXPECTATION_FAILED = "EXPECTATION_FAILED"

    # about one change event: likewise
    NO_SOURCE_METADATA = "NO_SOURCE_METADATA"
    NO_PAYLOAD = "NO_PAYLOAD"
    BAD_SOURCE_TIME = "BAD_SOURCE_TIME"
    BAD_POSITION = "BAD_POSITION"
    KEY_NOT_IN_PAYLOAD = "KEY_NOT_IN_PAYLOAD"
    NULL_KEY = "NULL_KEY"


class DistributaryError(Exception):
    """What happened, where, the evidence, and the next step; safe to print and to pickle."""

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
        """The same parts for `--json` and the ledger."""
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
    """The pipeline file or the command line is wrong."""

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
    """The error for a name that is not there, with those that are spelled alike."""
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
    """Something that must be installed is not."""

    code = ErrorCode.JAVA_MISSING


class RegistryError(DistributaryError):
    """The schema registry cannot give what was asked for."""

    code = ErrorCode.SCHEMA_NOT_FOUND


class RegistryUnavailableError(RegistryError):
    """The registry did not answer: never a reason to dead-letter a record."""

    code = ErrorCode.REGISTRY_UNAVAILABLE
    retryable = True
    exit_code = 75


class SchemaNotFoundError(RegistryError):
    """The registry answered: there is no such id, subject or version."""

    code = ErrorCode.SCHEMA_NOT_FOUND


class InvalidSchemaError(RegistryError):
    """A schema's text does not compile."""

    code = ErrorCode.SCHEMA_INVALID


class IncompatibleSchemaError(RegistryError):
    """The subject's compatibility level refuses a new version."""

    code = ErrorCode.SCHEMA_INCOMPATIBLE


class SourceError(DistributaryError):
    """The source cannot be read as configured."""

    code = ErrorCode.SOURCE_INVALID


class SourceUnavailableError(SourceError):
    """The source did not answer."""

    code = ErrorCode.SOURCE_UNAVAILABLE
    retryable = True
    exit_code = 75


class DecodeError(DistributaryError):
    """No decoder can be built for a schema."""

    code = ErrorCode.UNUSABLE_SCHEMA


class EvolutionError(DistributaryError):
    """A schema changed in a way for which the policy says `fail`."""

    code = ErrorCode.EVOLUTION_REFUSED


class SchemaGrewError(EvolutionError):
    """A record needs columns that a declarative update did not know when it began."""

    code = ErrorCode.SCHEMA_GREW
    retryable = True
    exit_code = 75


class CheckpointError(DistributaryError):
    """The checkpoint cannot be used as it is."""

    code = ErrorCode.CHECKPOINT_INVALID


class FencedError(CheckpointError):
    """Another process has taken this checkpoint over: this one must stop and touch nothing."""

    code = ErrorCode.CHECKPOINT_FENCED


class OwnedError(CheckpointError):
    """Another process is alive on this checkpoint."""

    code = ErrorCode.CHECKPOINT_OWNED
    exit_code = 75


class DivergedError(CheckpointError):
    """A batch number is marked as done, but with other records."""

    code = ErrorCode.CHECKPOINT_DIVERGED


class TableBehindError(CheckpointError):
    """A table is gone, or is older than the last batch that was settled for it."""

    code = ErrorCode.TABLE_BEHIND


class ExpectationError(DistributaryError):
    """Rows of a batch break a rule whose action is `fail`: nothing of it is written."""

    code = ErrorCode.EXPECTATION_REFUSED


class AccountingError(DistributaryError):
    """A batch does not add up: it fails instead of committing."""

    code = ErrorCode.ACCOUNTING_BROKEN


class CatalogError(DistributaryError):
    """The catalog does not take an entry; the table itself is as it should be."""

    code = ErrorCode.CATALOG_REFUSED


class CatalogUnavailableError(CatalogError):
    """The catalog did not answer."""

    code = ErrorCode.CATALOG_UNAVAILABLE
    retryable = True
    exit_code = 75


class DeployError(DistributaryError):
    """A job, a file or a grant cannot be put where it belongs."""

    code = ErrorCode.DEPLOY_REFUSED


class DeployUnavailableError(DeployError):
    """The workspace did not answer, or asked to come back later."""

    code = ErrorCode.DEPLOY_UNAVAILABLE
    retryable = True
    exit_code = 75


class PublishError(DistributaryError):
    """A table could not be committed."""

    code = ErrorCode.COMMIT_FAILED
    retryable = True


class LakeUnavailableError(PublishError):
    """The lake cannot be reached or written."""

    code = ErrorCode.LAKE_UNAVAILABLE
    exit_code = 75


class SourceWentBackError(PublishError):
    """A source goes back in its log, and events do not say why."""

    code = ErrorCode.SOURCE_WENT_BACK
    retryable = False


class OutsideLakeError(PublishError):
    """A path or a link in the lake leads out of it: nothing there is read, written or removed."""

    code = ErrorCode.OUTSIDE_LAKE
    retryable = False


class DamagedFileError(PublishError):
    """A data file of a table is not what was written: reading it again gives the same."""

    code = ErrorCode.DATA_FILE_DAMAGED
    retryable = False


class StagedFileError(PublishError):
    """A staged file is gone, or is not the file that was staged."""

    code = ErrorCode.STAGED_FILE_MISSING


_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_QUERY = re.compile(r"(://[^\s?\"']*)\?[^\s\"']*")
_LOGIN = re.compile(r"://[^\s/@\"']+@")
_LONGEST = 400
_MOST_LINES = 6


def clean(text: str) -> str:
    """One line of an engine's message: no colours, no stack, no secrets in addresses."""
    text = _LOGIN.sub("://***@", _QUERY.sub(r"\1?***", _ESCAPES.sub("", text)))
    lines = [line.strip(" ↳\t") for line in text.split("\n")]
    kept = [line for line in lines if line and not re.match(r"(\d+: |at )", line)]
    if len(kept) > _MOST_LINES:
        # what happened is said first, and why at the end
        half, room = _MOST_LINES // 2, _LONGEST // _MOST_LINES - len("; ")
        kept = [line[:room] for line in (*kept[:half], *kept[-half:])]
    return "".join(c if c.isprintable() else " " for c in "; ".join(kept))[:_LONGEST]


# What codes and words mean: the pages of the documentation that travel with the package.

_ANCHOR = re.compile(r'<a id="([A-Z0-9_]+)"></a>')
_CELL = re.compile(r"(?<!\\)\|")
_HEADINGS = frozenset({"word", "code"})


@cache
def meanings() -> dict[str, tuple[str, str]]:
    """By error code: what it means, and what to do."""
    found: dict[str, tuple[str, str]] = {}
    for line in _page("errors.md"):
        codes, cells = _ANCHOR.findall(line), _cells(line)
        if codes and len(cells) >= 2:
            meaning = cells[1] if len(cells) > 2 else f"the record {cells[1]}"
            found |= {code: (meaning, cells[2] if len(cells) > 2 else "") for code in codes}
    return found


@cache
def glossary() -> dict[str, str]:
    """By word: what it means."""
    rows = [_cells(line) for line in _page("glossary.md") if line.startswith("| ")]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[0] not in _HEADINGS}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in _CELL.split(line.strip().strip("|"))]


def _page(name: str) -> list[str]:
    packed = Path(__file__).parent / name
    if packed.is_file():
        return packed.read_text("utf-8").splitlines()
    # an editable install: the page is where it is written
    source = Path(__file__).parents[2] / "docs" / name
    return source.read_text("utf-8").splitlines() if source.is_file() else []
