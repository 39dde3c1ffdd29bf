"""What a pipeline says of itself in the lake, for commands that only know the lake."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs as pa_fs

from distributary.errors import CheckpointError
from distributary.observe import layout
from distributary.observe.delta import Storage, StorageOptions, open_storage, reaching
from distributary.observe.plain import plain

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Registration:
    """One `pipeline.json`."""

    name: str
    file: str
    """The pipeline file it was loaded from."""
    checkpoint: str
    reads: str = ""
    """The table that it reads, where that is a folder of the machine that it runs on."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The configuration with every secret masked: the caller masks, this only stores."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Names and folders of the tables it made, and of no others."""

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps({"format": FORMAT, **plain(self)}, indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Registration:
        """The inverse of `to_json`."""
        data = json.loads(text)
        data.pop("format")
        return cls(**data)


def register(
    lake: str, registration: Registration, *, storage_options: StorageOptions | None = None
) -> None:
    """Writes or replaces the pipeline's file; makes the lake's folder if there is none."""
    folder = layout.folder_name(registration.name)
    with reaching(layout.pipeline_file(lake, registration.name)):
        if "://" not in lake:
            os.makedirs(lake, exist_ok=True)
        path = f"{layout.HOME}/pipelines/{folder}/pipeline.json"
        Storage(lake, storage_options).put(path, registration.to_json().encode())


def registrations(
    lake: str, *, storage_options: StorageOptions | None = None
) -> tuple[Registration, ...]:
    """All pipelines that have registered in this lake, by name; none in an empty one."""
    with reaching(layout.pipelines(lake)):
        storage = open_storage(layout.pipelines(lake), storage_options)
        if storage is None:
            return ()
        files = storage.filesystem()
        found = []
        for folder in files.get_file_info(pa_fs.FileSelector("", allow_not_found=True)):
            if folder.type != pa_fs.FileType.Directory:
                continue
            path = f"{folder.path}/pipeline.json"
            if files.get_file_info(path).type != pa_fs.FileType.File:
                continue
            with files.open_input_stream(path) as stream:
                found.append(_read(stream.read(), f"{layout.pipelines(lake)}/{path}"))
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
        next_step="run the pipeline, which writes it anew; if there is no such pipeline, remove it",
    )


def registration(
    lake: str, name: str, *, storage_options: StorageOptions | None = None
) -> Registration | None:
    """One pipeline's own word, if it ever registered in this lake."""
    known = registrations(lake, storage_options=storage_options)
    return next((r for r in known if r.name == name), None)
