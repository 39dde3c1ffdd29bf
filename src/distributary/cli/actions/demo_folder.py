"""The folder of a demo: a lake, its source and schemas, and the file of the pipeline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Protocol

from distributary.cli.actions.demo_files import pipeline_file
from distributary.config.schema import json_schema
from distributary.errors import ConfigError, ErrorCode, OwnedError
from distributary.observe import layout
from distributary.run.checkpoint import Manifests
from distributary.run.claim import state_of

_MARKER = ".distributary-demo.json"
_SCHEMAS = "schemas"
_FILE_SCHEMA = "pipeline.schema.json"
_CHECKPOINTS = "_checkpoints"
_SUBJECTS = ("games", "orders", "cdc")


class About(Protocol):
    """What has to be known of a demo to make room for it."""

    @property
    def subject(self) -> str:
        """Also the name of its pipeline."""
        ...

    @property
    def topic(self) -> str:
        """The folder that stands for its source."""
        ...

    @property
    def kafka(self) -> bool:
        """Whether it needs a broker and a registry."""
        ...

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that it may make."""
        ...


class DemoFolder:
    """Knows what a demo makes, and touches nothing else."""

    def __init__(self, path: Path, scene: About) -> None:
        self.given = path
        self.path = path.absolute()
        self.scene = scene

    @property
    def file(self) -> Path:
        """The pipeline file."""
        return self.path / f"{self.scene.subject}.yaml"

    @property
    def source(self) -> Path:
        """The table or folder that stands for a topic."""
        return self.path / self.scene.topic

    @property
    def schemas(self) -> Path:
        """The folder that stands for a registry."""
        return self.path / _SCHEMAS

    def newest_batch(self) -> int:
        """The newest batch that is decided, or -1."""
        return Manifests(self.path / _CHECKPOINTS / self.scene.subject / "manifests").newest()

    def begin(self) -> bool:
        """An empty demo; whether an earlier one had to go for it."""
        anew = self._clear()
        self.path.mkdir(parents=True, exist_ok=True)
        # said first: what is made from now on may be removed by the next demo
        made = {
            "made_by": f"distributary demo {self.scene.subject}",
            "folders": [self.scene.topic, *self.scene.tables],
        }
        (self.path / _MARKER).write_text(json.dumps(made, indent=2), encoding="utf-8")
        return anew

    def write_file(self, *, kafka: str = "", registry: str = "") -> None:
        """The pipeline file, and the schema by which editors know its keys."""
        schema = json.dumps(json_schema(), indent=2)
        (self.path / _FILE_SCHEMA).write_text(schema, encoding="utf-8")
        text = pipeline_file(
            self.scene.subject,
            kafka=self.scene.kafka,
            schema=_FILE_SCHEMA,
            root=_quoted(self.path),
            source=_quoted(self.source),
            schemas=_quoted(self.schemas),
            topic=self.scene.topic,
            bootstrap_servers=kafka,
            registry=registry,
        )
        self.file.write_text(text, encoding="utf-8")

    def _clear(self) -> bool:
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return False
        folders = self._earlier_folders()
        if folders is None:
            raise self._foreign("it was not made by a demo")
        mine = {_SCHEMAS, _FILE_SCHEMA, _MARKER, _CHECKPOINTS, layout.HOME, *folders}
        mine |= {f"{subject}.yaml" for subject in _SUBJECTS}
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name not in mine)
        if others:
            raise self._foreign(f"it holds {', '.join(others[:5])}")
        checkpoints = (self.path / _CHECKPOINTS / subject for subject in _SUBJECTS)
        if any(state_of(folder) == "running" for folder in checkpoints):
            raise OwnedError(
                "the pipeline of this demo is running",
                where=str(self.path),
                next_step="stop it first, or choose another folder with --path",
            )
        # the marker goes last: a removal that was interrupted can be taken up again
        for entry in sorted(self.path.iterdir(), key=lambda entry: entry.name == _MARKER):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        return True

    def _earlier_folders(self) -> list[str] | None:
        try:
            made = json.loads((self.path / _MARKER).read_text(encoding="utf-8"))
            return [str(name) for name in made["folders"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _foreign(self, evidence: str) -> ConfigError:
        return ConfigError(
            "the folder is not empty, and a demo begins with an empty one",
            code=ErrorCode.CONFIG_INVALID,
            where=str(self.path),
            evidence=evidence,
            next_step="choose another folder with --path, or empty this one yourself",
        )


def _quoted(path: Path) -> str:
    """A path as YAML reads it back, whatever is in it."""
    return "'" + str(path).replace("'", "''") + "'"
