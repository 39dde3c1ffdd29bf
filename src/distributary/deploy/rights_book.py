"""The record of what was granted, in the lake: only what stands in it is ever revoked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from distributary import durable
from distributary.config.lake import local_path
from distributary.deploy.rights import Record, Right, Standing
from distributary.errors import DeployError
from distributary.observe import layout
from distributary.observe.delta import Storage, StorageOptions, open_storage, reaching
from distributary.run.exclusive import held

FORMAT = 1


class RightsBook:
    """One small file of a pipeline; it stays when the pipeline is reset or cleaned."""

    def __init__(
        self, lake: str, pipeline: str, *, storage_options: StorageOptions | None = None
    ) -> None:
        self.path = layout.join(lake, layout.HOME, "grants", f"{layout.folder_name(pipeline)}.json")
        self._lake = lake
        self._pipeline = pipeline
        self._options = storage_options
        self._local: Path | None = local_path(self.path)

    def read(self) -> dict[Right, Standing]:
        """What is recorded; nothing where nothing was ever granted."""
        data = self._bytes()
        if data is None:
            return {}
        try:
            content = json.loads(data)
            if content["format"] != FORMAT or content["pipeline"] != self._pipeline:
                raise ValueError
            return {
                Right(tuple(row["name"]), row["principal"], row["privilege"]): Standing(
                    row["standing"]
                )
                for row in content["rights"]
            }
        except (ValueError, KeyError, TypeError) as error:
            raise DeployError(
                "the record of what was granted cannot be read",
                where=self.path,
                evidence=type(error).__name__,
                next_step="restore it from a backup: without it nothing can be revoked safely",
            ) from None

    def write(self, record: Record) -> None:
        """Put the record in place of the one before; a crash leaves the one or the other."""
        rows = [
            {
                "name": list(right.name),
                "principal": right.principal,
                "privilege": right.privilege,
                "standing": str(record[right]),
            }
            for right in sorted(record)
        ]
        content = {"format": FORMAT, "pipeline": self._pipeline, "rights": rows}
        data = json.dumps(content, indent=1).encode()
        with reaching(self.path):
            if self._local is None:
                inside = self.path.removeprefix(layout.join(self._lake, ""))
                Storage(self._lake, self._options).put(inside, data)
            else:
                self._local.parent.mkdir(parents=True, exist_ok=True)
                durable.replace(self._local, data)

    @contextmanager
    def held(self, *, waiting: Callable[[], None]) -> Iterator[None]:
        """One change of grants at a time, among processes that see the same file system."""
        if self._local is None:
            with nullcontext():
                yield
            return
        with reaching(self.path):
            self._local.parent.mkdir(parents=True, exist_ok=True)
            lock = self._local.with_suffix(".lock").open("a")
        with lock, held(lock, waiting=waiting):
            yield

    def _bytes(self) -> bytes | None:
        with reaching(self.path):
            if self._local is not None:
                return self._local.read_bytes() if self._local.is_file() else None
            folder, _, name = self.path.rpartition("/")
            storage = open_storage(folder, self._options)
            if storage is None:
                return None
            try:
                with storage.filesystem().open_input_stream(name) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None
