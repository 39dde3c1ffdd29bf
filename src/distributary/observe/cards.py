"""The card of each pipeline in a lake: its file, its settings with masks, and its tables."""

from __future__ import annotations

import grp
import hashlib
import json
import logging
import os
import pwd
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import platformdirs

from distributary.delta.tables import reaching_table
from distributary.errors import CheckpointError, ConfigError, ErrorCode
from distributary.model import layout
from distributary.observe.documents import read_as
from distributary.observe.log_format import plain
from distributary.store import disk
from distributary.store.base import absolute, at, local_path

if TYPE_CHECKING:
    from distributary.config.load import Loaded

FORMAT = 1
_CARD = "pipeline.json"
REMOVAL = "removal.json"
"""The file with the removals of a reset or clean in progress."""
RESTORE = "restore.json"
"""The file that names the backup of a restore in progress."""


@dataclass(frozen=True, slots=True)
class Registration:
    """One `pipeline.json`."""

    name: str
    file: str
    """The pipeline file it was loaded from; empty for settings that were given in Python."""
    checkpoint: str
    reads: str = ""
    """The table that the pipeline reads, if that is a folder of its machine."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The configuration, in which the caller has masked every secret."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Names and folders of the tables that the pipeline created."""

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps({"format": FORMAT, **plain(self)}, indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Registration:
        """Parse the content that `to_json` returned."""
        data = json.loads(text)
        data.pop("format")
        return cls(**data)


def register(lake: str, registration: Registration) -> None:
    """Write or replace the pipeline's card; create the lake's folder if it is missing."""
    name = registration.name
    with reaching_table(layout.pipeline_file(lake, name)):
        place = at(layout.pipeline(lake, name))
        place.write(_CARD, registration.to_json().encode(), durable=False)


def registrations(lake: str) -> tuple[Registration, ...]:
    """Return the pipelines that have registered in this lake, sorted by name."""
    home, found = layout.pipelines(lake), []
    with reaching_table(home):
        place = at(home)
        for folder in place.folders():
            path = f"{folder}/{_CARD}"
            with suppress(FileNotFoundError):
                found.append(_read(place.read(path), f"{home}/{path}"))
    return tuple(sorted(found, key=lambda r: r.name))


def _read(text: bytes, where: str) -> Registration:
    try:
        found = Registration.from_json(text)
        texts = (found.name, found.file, found.checkpoint, *found.tables, *found.tables.values())
        if all(isinstance(each, str) and "\0" not in each for each in texts):
            return found
        evidence = "something else where a text should be"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        evidence = type(error).__name__
    # an error and not skipped: the files of an unknown pipeline could be deleted
    raise CheckpointError(
        "the card of a pipeline cannot be read",
        where=where,
        evidence=evidence,
        next_step="run the pipeline, which writes it; if there is no such pipeline, remove it",
    )


def unfinished_removal(lake: str, pipeline: str) -> bool:
    """Return whether a reset or clean was begun and has not ended."""
    return at(layout.pipeline(lake, pipeline)).size(REMOVAL) is not None


def refuse_half_restored(lake: str) -> None:
    """Raise RESTORE_UNFINISHED if a restore of this lake was interrupted."""
    home = at(layout.join(lake, layout.HOME))
    with reaching_table(home.address):
        if home.look(RESTORE) is None:
            return
    raise CheckpointError(
        "the restore of this lake from a backup has not finished",
        code=ErrorCode.RESTORE_UNFINISHED,
        where=f"{home.address}/{RESTORE}",
        evidence="tables or checkpoints may be missing: nothing was read or written",
        next_step="`distributary restore` once more, with the backup that this file names",
    )


# States that are stored in the lake for `status`.

_State = TypeVar("_State")


def _write_state(folder: str, name: str, state: object) -> None:
    """Replace a stored state; failures are ignored, because the state is only informative."""
    content = json.dumps({"format": FORMAT, **plain(state)}).encode()
    with suppress(OSError):
        store = at(folder)
        if store.exists():
            store.write(name, content, durable=False)


def _read_state(kind: type[_State], folder: str, name: str) -> _State | None:
    """Return a stored state; None if there is none, or if it cannot be read."""
    try:
        return read_as(kind, json.loads(at(folder).read(name)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


# The state of a pipeline's tables in the catalog.

_CATALOG = "catalog.json"


@dataclass(frozen=True, slots=True)
class Unregistered:
    """A table without a correct entry in the catalog."""

    table: str
    """The table; empty if the catalog itself fails."""
    code: str
    error: str
    next_step: str
    since: datetime
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class CatalogState:
    """The state of the catalog at the last attempt to update it."""

    type: str
    place: str
    """The catalog and schema of the tables: `main.games`."""
    at: datetime
    registered: int = 0
    waiting: int = 0
    """The number of tables that are retried."""
    problems: tuple[Unregistered, ...] = ()
    """A few of the problems, the oldest first."""

    @property
    def code(self) -> str:
        """Return the code of the oldest problem; empty when there is none."""
        return self.problems[0].code if self.problems else ""

    @property
    def error(self) -> str:
        """Return the description of the oldest problem."""
        if not self.problems:
            return ""
        first = self.problems[0]
        return f"{first.table}: {first.error}" if first.table else first.error

    @property
    def summary(self) -> tuple[int, int, str, str]:
        """Return the parts whose change is reported."""
        return self.registered, self.waiting, self.code, self.error


def write_catalog_state(folder: str, state: CatalogState) -> None:
    """Replace the stored state; failures are ignored, because the state is only informative."""
    _write_state(folder, _CATALOG, state)


def read_catalog_state(lake: str, pipeline: str) -> CatalogState | None:
    """Return the stored state; None if there is none, or if it cannot be read."""
    return _read_state(CatalogState, layout.pipeline(lake, pipeline), _CATALOG)


# The state of the Iceberg mirrors of a pipeline's tables, stored in the same way.

_MIRRORS = "iceberg.json"


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The state of the Iceberg mirrors after the last round."""

    type: str
    """Kind of catalog: none, sql or rest."""
    at: datetime
    tables: int = 0
    behind: int = 0
    """Mirrors that could not be brought up to date; they are tried again."""
    current_until: datetime | None = None
    """Every mirror shows at least what was committed until then; None: not known."""
    made_again: int = 0
    """Mirrors that were made again from the Delta log by the last round: they were lost, damaged
    or edited."""
    problems: tuple[Unregistered, ...] = ()
    """The reasons why mirrors are behind, the oldest first; a few of them."""


def write_mirror_state(lake: str, pipeline: str, state: MirrorState) -> None:
    """Store the state; a lake that refuses it is no failure of the mirrors."""
    _write_state(layout.pipeline(lake, pipeline), _MIRRORS, state)


def read_mirror_state(lake: str, pipeline: str) -> MirrorState | None:
    """Return the stored state; None if there is none, or if it cannot be read."""
    return _read_state(MirrorState, layout.pipeline(lake, pipeline), _MIRRORS)


# The result of the last maintenance of a pipeline's tables, stored in the same way.

_UPKEEP = "upkeep.json"


@dataclass(frozen=True, slots=True)
class UpkeepState:
    """The last maintenance of a pipeline's tables, by a run or by `maintain`."""

    at: datetime
    seconds: float
    tables: int
    changed: int
    failed: int
    left: int
    """The number of tables left for the next time, for lack of time."""
    files_before: int
    """The number of files in the compacted tables before."""
    files_after: int
    files_deleted: int
    bytes_deleted: int
    dead_letters: int
    """The number of expired dead letters."""
    error: str = ""
    """Code and description of the first failure."""
    rows_removed: int = 0
    """Rows that were too old, when some were removed last."""
    rows_removed_at: datetime | None = None
    """The time of the last removal of rows; None without any."""


def write_upkeep_state(lake: str, pipeline: str, state: UpkeepState) -> None:
    """Replace the stored state; failures are ignored, because the state is only informative."""
    _write_state(layout.pipeline(lake, pipeline), _UPKEEP, state)


def read_upkeep_state(lake: str, pipeline: str) -> UpkeepState | None:
    """Return the stored state; None if there is none, or if it cannot be read."""
    return _read_state(UpkeepState, layout.pipeline(lake, pipeline), _UPKEEP)


# Trust in pipeline files that a lake's cards name. Any writer of a lake can change its cards, and a
# pipeline file decides where secrets are sent and which classes Spark loads. So a run stores a pin
# in the user's own folder, outside of the lake: the hash of its file, and the place of its
# checkpoint. Without a matching pin, a file is loaded only if the command names it.

_log = logging.getLogger(__name__)
_FORMAT = 1
DECODING = frozenset({"lake", "registry"})
"""The sections whose secrets are needed to look into records; Spark and the source are not."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The pin that a run of this user stores about its file. All paths are free of links."""

    lake: str
    pipeline: str
    file: str
    sha256: str
    checkpoint: str


def pin(lake: str, pipeline: str, *, file: Path, sha256: str, checkpoint: str) -> None:
    """Store that this user runs a pipeline with the current content of this file."""
    paths = (_address(lake), pipeline, os.path.realpath(file))
    content = {"format": _FORMAT, **asdict(Pin(*paths, sha256, _address(checkpoint)))}
    place = _place(*paths)
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.parent.chmod(0o700)
        disk.replace(place, (json.dumps(content, indent=2) + "\n").encode())
        place.chmod(0o600)
    except OSError as error:
        # the run works without a pin; commands will ask for the file
        _log.warning("%s: commands will ask for --file (%s)", place, error.strerror)


def load_trusted(
    card: Registration, lake: str, *, needs: Collection[str] | None = None, option: str = "--file"
) -> Loaded:
    """Load the file that a card names. Raises ConfigError if it is not trusted.

    An untrusted file is not opened. `needs` is as in `load`; `option` is the option of the caller's
    command that names a file.
    """
    # imported here, because the import takes long and most commands need no settings
    from distributary.config.file.document import read
    from distributary.config.load import load_text
    from distributary.model.names import printable

    file = _file(card, option)
    if not file.is_file():
        raise ConfigError(
            f"the file of pipeline {card.name} is gone",
            code=ErrorCode.NOT_FOUND,
            where=printable(card.file),
            next_step=f"name its new path with {option}",
        )
    known = _pin(card, lake)
    if known is None:
        where = "in the lake, and not" if _within(file, lake) else "not"
        raise _refusal(card, evidence=f"{where} used by any run of this user", option=option)
    if not _is_own(file):
        evidence = "it belongs to another user, or others may write to it"
        raise _refusal(card, evidence=evidence, option=option)
    # the hashed bytes are loaded, so the file cannot change between the two
    text, sha256 = read(file)
    if sha256 != known.sha256:
        evidence = f"changed since its last run: sha256 {sha256[:12]}, run with {known.sha256[:12]}"
        raise _refusal(card, evidence=evidence, option=option)
    loaded = load_text(text, file=printable(str(file)), needs=needs)
    loaded = replace(loaded, path=file, sha256=sha256)
    meant = loaded.config.lake.address
    if _address(meant) != _address(lake):
        raise ConfigError(
            f"the file of pipeline {card.name} names another lake when it is read from this folder",
            where=printable(card.file),
            evidence=f"{meant} instead of {lake}",
            next_step="go to the folder that the pipeline runs in: paths in the file start there",
        )
    return loaded


def trusted_checkpoint(card: Registration, lake: str) -> Path | None:
    """Return a card's checkpoint if files in it may be removed: it is in the lake, or pinned."""
    try:
        folder = Path(os.path.realpath(card.checkpoint))
    except ValueError:
        return None
    if _within(folder, lake):
        return folder
    known = _pin(card, lake)
    return folder if known is not None and known.checkpoint == str(folder) else None


def _file(card: Registration, option: str) -> Path:
    if not card.file:
        raise ConfigError(
            f"pipeline {card.name} has no file: its settings were given in Python",
            code=ErrorCode.NOT_FOUND,
            where=card.name,
            next_step=f"write the same settings to a file, and name it with {option}",
        )
    if not os.path.isabs(card.file) or "\0" in card.file:
        raise _refusal(card, evidence="not an absolute path", option=option)
    return Path(os.path.realpath(card.file))


def _refusal(card: Registration, *, evidence: str, option: str) -> ConfigError:
    from distributary.model.names import printable

    return ConfigError(
        f"the file of pipeline {card.name} is named only by the lake, and is therefore not trusted",
        code=ErrorCode.FILE_NOT_TRUSTED,
        where=printable(card.file) or "its card",
        evidence=evidence,
        next_step=f"check the file; if it is yours, name it with {option}, or run the pipeline "
        "again",
    )


def _pin(card: Registration, lake: str) -> Pin | None:
    """Return the pin that a run of this user has stored for a card's file."""
    try:
        place = _place(_address(lake), card.name, os.path.realpath(card.file))
        if not _is_own(place) or _within(Path(os.path.realpath(place)), lake):
            return None
        content = json.loads(place.read_bytes())
        return Pin(**content) if content.pop("format") == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _place(lake: str, pipeline: str, file: str) -> Path:
    key = hashlib.sha256(json.dumps([lake, pipeline, file]).encode()).hexdigest()
    return platformdirs.user_state_path("distributary") / "trusted" / f"{key}.json"


def _address(lake: str) -> str:
    """Return a lake's address in its one canonical spelling."""
    folder = local_path(lake)
    return absolute(lake).rstrip("/") if folder is None else os.path.realpath(folder)


def _within(path: Path, lake: str) -> bool:
    folder = local_path(lake)
    return folder is not None and path.is_relative_to(os.path.realpath(folder))


def _is_own(path: Path) -> bool:
    """Return whether a file belongs to this user or root, and no other user may write to it."""
    found = os.stat(path)
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & stat.S_IWOTH:
        return False
    return not found.st_mode & stat.S_IWGRP or _is_private(found.st_gid)


def _is_private(group: int) -> bool:
    """Return whether a group contains this user only."""
    try:
        user, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user and set(found.gr_mem) <= {user}
