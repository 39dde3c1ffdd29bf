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
from typing import TYPE_CHECKING, Any

import platformdirs

from distributary.delta.tables import reaching
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
"""What a reset or clean takes away, in the pipeline's folder until it has ended."""
RESTORE = "restore.json"
"""Which backup is being put back, in the lake's own folder until that has ended."""


@dataclass(frozen=True, slots=True)
class Registration:
    """One `pipeline.json`."""

    name: str
    file: str
    """The pipeline file it was loaded from; empty for settings that were given in Python."""
    checkpoint: str
    reads: str = ""
    """The table that it reads, where that is a folder of the machine that it runs on."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The configuration with every secret masked: the caller masks, this only stores."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Names and folders of the tables it made, and of no others."""

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
    """Writes or replaces the pipeline's file; makes the lake's folder if there is none."""
    name = registration.name
    with reaching(layout.pipeline_file(lake, name)):
        place = at(layout.pipeline(lake, name))
        place.write(_CARD, registration.to_json().encode(), durable=False)


def registrations(lake: str) -> tuple[Registration, ...]:
    """Return the pipelines that have registered in this lake, sorted by name."""
    home, found = layout.pipelines(lake), []
    with reaching(home):
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
    # not passed over: what a pipeline is about to commit would look like nobody's
    raise CheckpointError(
        "what a pipeline says of itself cannot be read",
        where=where,
        evidence=evidence,
        next_step="run the pipeline, which writes it; if there is no such pipeline, remove it",
    )


def unfinished_removal(lake: str, pipeline: str) -> bool:
    """Return whether a reset or clean was begun and has not ended."""
    return at(layout.pipeline(lake, pipeline)).size(REMOVAL) is not None


def refuse_half_restored(lake: str) -> None:
    """Raise RESTORE_UNFINISHED where a backup was being put back, and that has not ended."""
    home = at(layout.join(lake, layout.HOME))
    with reaching(home.address):
        if home.look(RESTORE) is None:
            return
    raise CheckpointError(
        "this lake was being put back from a backup, and that has not ended",
        code=ErrorCode.RESTORE_UNFINISHED,
        where=f"{home.address}/{RESTORE}",
        evidence="tables or checkpoints may be missing: nothing was read or written",
        next_step="`distributary restore` once more, with the backup that this file names",
    )


# What the catalog has of a pipeline's tables, kept in the lake for those who ask.

_CATALOG = "catalog.json"


@dataclass(frozen=True, slots=True)
class Unregistered:
    """A table that the catalog does not have as it should."""

    table: str
    """Empty where the catalog itself is the trouble."""
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
    """The parts of the tables' names before their own: `main.games`."""
    at: datetime
    registered: int = 0
    waiting: int = 0
    """Tables that are tried again."""
    problems: tuple[Unregistered, ...] = ()
    """Why, the oldest first, a few of them."""

    @property
    def code(self) -> str:
        """Return the code of the oldest problem; empty when there is none."""
        return self.problems[0].code if self.problems else ""

    @property
    def error(self) -> str:
        """Likewise, in words."""
        if not self.problems:
            return ""
        first = self.problems[0]
        return f"{first.table}: {first.error}" if first.table else first.error

    @property
    def summary(self) -> tuple[int, int, str, str]:
        """Return the parts whose change is reported."""
        return self.registered, self.waiting, self.code, self.error


def write_catalog_state(folder: str, state: CatalogState) -> None:
    """Put it in place of the one before; where it cannot be written, it is not what counts."""
    content = json.dumps({"format": FORMAT, **plain(state)}).encode()
    with suppress(OSError):
        store = at(folder)
        if store.exists():
            store.write(_CATALOG, content, durable=False)


def read_catalog_state(lake: str, pipeline: str) -> CatalogState | None:
    """Return the stored state; None if there is none, or if it cannot be read."""
    try:
        content = json.loads(at(layout.pipeline(lake, pipeline)).read(_CATALOG))
        return read_as(CatalogState, content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


# What upkeep did to a pipeline's tables when it was last done, likewise.

_UPKEEP = "upkeep.json"


@dataclass(frozen=True, slots=True)
class UpkeepState:
    """The last upkeep of a pipeline's tables, by a run or by `maintain`."""

    at: datetime
    seconds: float
    tables: int
    changed: int
    failed: int
    left: int
    """Tables that wait for the next time, because no time was left."""
    files_before: int
    """Of the tables whose small files were put together."""
    files_after: int
    files_deleted: int
    bytes_deleted: int
    dead_letters: int
    """Dead letters that expired."""
    error: str = ""
    """Code and words of the first failure."""


def write_upkeep_state(lake: str, pipeline: str, state: UpkeepState) -> None:
    """Put it in place of the one before; where it cannot be written, it is not what counts."""
    content = json.dumps({"format": FORMAT, **plain(state)}).encode()
    with suppress(OSError):
        store = at(layout.pipeline(lake, pipeline))
        if store.exists():
            store.write(_UPKEEP, content, durable=False)


def read_upkeep_state(lake: str, pipeline: str) -> UpkeepState | None:
    """Return the stored state; None if there is none, or if it cannot be read."""
    try:
        content = json.loads(at(layout.pipeline(lake, pipeline)).read(_UPKEEP))
        return read_as(UpkeepState, content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


# Which pipeline files that a lake names are loaded unasked: those that this user has run.
#
# Whoever can write to a lake can write what they like into its cards, and a pipeline file says
# where secrets are sent and which classes Spark loads. So a run writes a pin outside of the lake,
# into the user's own folder: which file it was made of, by the hash of its bytes, and where its
# progress is. Every other file is loaded only when it is named on the command.

_log = logging.getLogger(__name__)
_FORMAT = 1
DECODING = frozenset({"lake", "registry"})
"""The sections whose secrets are needed to look into records; Spark and the source are not."""


@dataclass(frozen=True, slots=True)
class Pin:
    """What a run of this user says about its file. All paths are resolved: no link is in them."""

    lake: str
    pipeline: str
    file: str
    sha256: str
    checkpoint: str


def pin(lake: str, pipeline: str, *, file: Path, sha256: str, checkpoint: str) -> None:
    """Write down that this user runs a pipeline by this file, as it is now."""
    paths = (_address(lake), pipeline, os.path.realpath(file))
    content = {"format": _FORMAT, **asdict(Pin(*paths, sha256, _address(checkpoint)))}
    place = _place(*paths)
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.parent.chmod(0o700)
        disk.replace(place, (json.dumps(content, indent=2) + "\n").encode())
        place.chmod(0o600)
    except OSError as error:
        # the run does not need it: commands will ask for the file
        _log.warning("%s: commands will ask for --file (%s)", place, error.strerror)


def load_trusted(
    card: Registration, lake: str, *, needs: Collection[str] | None = None, option: str = "--file"
) -> Loaded:
    """Load the file that a card names. Raises ConfigError if it is not trusted.

    A file that is not trusted is not opened. `needs` is as in `load`; `option` is what
    the caller's command has for naming a file.
    """
    # what reads settings takes long to import, and most of those who look at a lake need none
    from distributary.config.document import printable, read
    from distributary.config.load import load_text

    file = _file(card, option)
    if not file.is_file():
        raise ConfigError(
            f"the file of pipeline {card.name} is gone",
            code=ErrorCode.NOT_FOUND,
            where=printable(card.file),
            next_step=f"name where it is now with {option}",
        )
    known = _pin(card, lake)
    if known is None:
        where = "in the lake, and not" if _within(file, lake) else "not"
        raise _refusal(card, evidence=f"{where} used by any run of this user", option=option)
    if not _is_own(file):
        evidence = "it belongs to another user, or others may write to it"
        raise _refusal(card, evidence=evidence, option=option)
    # what is hashed is what is loaded: nobody can change the file between the two
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
    """Return a card's checkpoint if it may be tidied: it is in the lake, or pinned."""
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
    from distributary.config.document import printable

    return ConfigError(
        f"the file of pipeline {card.name} is known by the lake alone, and is not loaded unasked",
        code=ErrorCode.FILE_NOT_TRUSTED,
        where=printable(card.file) or "its card",
        evidence=evidence,
        next_step=f"look at it; if it is yours, name it with {option}, or run the pipeline again",
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
