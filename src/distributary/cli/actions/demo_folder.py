"""The folder of a demo: a lake, its source and schemas, and the file of the pipeline."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from distributary.config.schema import json_schema
from distributary.errors import ConfigError, ErrorCode, OwnedError
from distributary.observe import layout
from distributary.run.claim import state_of

PIPELINE = "games"
SOURCE = "wrapper"
FILE = "games.yaml"

_MARKER = ".distributary-demo.json"
_SCHEMAS = "schemas"
_FILE_SCHEMA = "pipeline.schema.json"
_TABLES = ("bronze_events", "unified_gold", "dead_letters")
_CHECKPOINTS = "_checkpoints"

_YAML = """\
# yaml-language-server: $schema={schema}
# Made by `distributary demo games`. Everything else works on it: run, status, plan, dlq, trace.
name: {pipeline}

source:
  type: delta
  path: {source}
  value: wrapper
  key: key
  timestamp: produced_at

registry:
  path: {schemas}

envelope:
  format: protobuf
  subject: wrapper-value
  type: game_name
  schema_id: schema_id
  payload: payload

payload:
  format: protobuf
  validate: registry

tables:
  bronze: bronze_events
  each: silver_{{type}}
  unified: unified_gold

lake:
  path: {root}

trigger: available_now
"""


class DemoFolder:
    """Knows what a demo makes, and touches nothing else."""

    def __init__(self, path: Path) -> None:
        self.given = path
        self.path = path.absolute()

    @property
    def file(self) -> Path:
        """The pipeline file."""
        return self.path / FILE

    @property
    def source(self) -> Path:
        """The table that stands for a topic."""
        return self.path / SOURCE

    @property
    def schemas(self) -> Path:
        """The folder that stands for a registry."""
        return self.path / _SCHEMAS

    def begin(self, games: Sequence[str]) -> bool:
        """An empty demo; whether an earlier one had to go for it."""
        anew = self._clear()
        self.path.mkdir(parents=True, exist_ok=True)
        # said first: what is made from now on may be removed by the next demo
        made = {"made_by": "distributary demo games", "games": list(games)}
        (self.path / _MARKER).write_text(json.dumps(made, indent=2), encoding="utf-8")
        schema = json.dumps(json_schema(), indent=2)
        (self.path / _FILE_SCHEMA).write_text(schema, encoding="utf-8")
        text = _YAML.format(
            schema=_FILE_SCHEMA,
            pipeline=PIPELINE,
            root=_quoted(self.path),
            source=_quoted(self.source),
            schemas=_quoted(self.schemas),
        )
        self.file.write_text(text, encoding="utf-8")
        return anew

    def _clear(self) -> bool:
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return False
        games = self._earlier_games()
        if games is None:
            raise self._foreign("it was not made by a demo")
        mine = {FILE, SOURCE, _SCHEMAS, _FILE_SCHEMA, _MARKER, _CHECKPOINTS, layout.HOME, *_TABLES}
        mine |= {f"silver_{game}" for game in games}
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name not in mine)
        if others:
            raise self._foreign(f"it holds {', '.join(others[:5])}")
        if state_of(self.path / _CHECKPOINTS / PIPELINE) == "running":
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

    def _earlier_games(self) -> list[str] | None:
        try:
            made = json.loads((self.path / _MARKER).read_text(encoding="utf-8"))
            return [str(game) for game in made["games"]]
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
