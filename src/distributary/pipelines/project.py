"""The folder of a declarative project, as its spec file describes it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from distributary.config.lake import local_path
from distributary.config.problems import printable
from distributary.errors import ConfigError, ErrorCode, SetupError

SPEC_FILES = ("spark-pipeline.yml", "spark-pipeline.yaml")
_NEEDED = ("grpc", "grpc_status", "yaml", "zstandard")
_COPY = ".spark-pipeline.update-{number}.yml"
_MOST = 300


@dataclass(frozen=True, slots=True)
class Project:
    """A spec file, read."""

    spec: Path
    """Absolute."""
    name: str
    document: Mapping[str, Any] = field(repr=False)
    """All that the file says."""

    @property
    def folder(self) -> Path:
        """Where definitions are looked for, and relative paths start."""
        return self.spec.parent

    @property
    def configuration(self) -> dict[str, str]:
        """The settings of Spark; they may hold secrets."""
        return dict(self.document.get("configuration") or {})

    def effective(self, settings: Mapping[str, str]) -> dict[str, Any]:
        """The same spec with these settings, and with a whole address as storage."""
        storage = str(self.document["storage"])
        local = local_path(storage)
        if local is not None and "://" not in storage:
            storage = (self.folder / storage.removeprefix("file:")).resolve().as_uri()
        return {**self.document, "storage": storage, "configuration": dict(settings)}

    @contextmanager
    def written(self, document: Mapping[str, Any]) -> Iterator[Path]:
        """A spec file beside the project's own, for as long as it is needed."""
        for left in self.folder.glob(_COPY.format(number="*")):
            # of an update that was killed
            left.unlink(missing_ok=True)
        place = self.folder / _COPY.format(number=os.getpid())
        try:
            # it may hold secrets
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                YAML(typ="safe", pure=True).dump(dict(document), file)
            yield place
        finally:
            place.unlink(missing_ok=True)


def find_project(path: Path) -> Project:
    """The project in a folder, or of a spec file; ConfigError if there is none."""
    candidates = [path / name for name in SPEC_FILES] if path.is_dir() else [path]
    found = [each for each in candidates if each.is_file()]
    if len(found) != 1:
        raise ConfigError(
            "the folder has two spec files" if found else "this is no declarative project",
            code=ErrorCode.CONFIG_INVALID if found else ErrorCode.NOT_FOUND,
            where=printable(str(path)),
            evidence=f"looked for {' and '.join(each.name for each in candidates)}"[:_MOST],
            next_step="name a folder with one spark-pipeline.yml, or the file itself",
        )
    spec = found[0].absolute()
    document = _read(spec)
    return Project(spec, printable(document["name"]), document)


def require_extra() -> None:
    """SetupError unless everything is installed that Spark's client needs."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            "declarative pipelines need packages that are not installed",
            code=ErrorCode.EXTRA_MISSING,
            evidence=f"cannot import {', '.join(missing)}",
            next_step="pip install 'distributary[pipelines]'",
        )


def _read(spec: Path) -> dict[str, Any]:
    try:
        document = YAML(typ="safe", pure=True).load(spec.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the spec file cannot be read",
            code=ErrorCode.CONFIG_UNREADABLE,
            where=printable(str(spec)),
            evidence=type(error).__name__,
        ) from error
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            "the spec file is not YAML",
            code=ErrorCode.CONFIG_SYNTAX,
            where=f"{printable(str(spec))}:{mark.line + 1}" if mark else printable(str(spec)),
            next_step="mend it at the line named",
        ) from error
    problem = _problem(document)
    if problem:
        raise ConfigError(
            f"the spec file {problem}",
            where=printable(str(spec)),
            next_step="see the section on spec files in docs/declarative.md",
        )
    return dict(document)


def _problem(document: object) -> str:
    if not isinstance(document, dict):
        return "is not a mapping"
    for key in ("name", "storage"):
        if not isinstance(document.get(key), str) or not document[key].strip():
            return f"needs {key}, as text"
    settings = document.get("configuration") or {}
    if not isinstance(settings, dict):
        return "needs a mapping as configuration"
    if not all(isinstance(part, str) for pair in settings.items() for part in pair):
        return "has a setting in configuration that is not text: put it in quotes"
    return ""
