"""The documents of a pipeline's checkpoint that belong to a backup."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from distributary.engine.progress.checkpoint import Checkpoint, ManifestCopy
from distributary.errors import CheckpointError, ErrorCode
from distributary.model import layout
from distributary.model.manifest import ASIDE, LANES, Manifest, app_id
from distributary.observe.deadletters import unfinished
from distributary.operations.backup.state import MovedError, read_document
from distributary.publish.parking import ParkedBatch, parked
from distributary.store.base import Store, at, unpacked
from distributary.store.seal import unseal

_PUT_BACK = "put the checkpoint back from a copy; do not delete the manifest"
FOLDERS = {lane: "manifests" if lane == "stream" else lane for lane in LANES}
"""The folder of a checkpoint in which a lane keeps its manifests."""
_MANIFEST = re.compile(r"([0-9]{20})\.json(?:\.zst)?")
_NOT_PROGRESS = ("claims/", "runs/", "manifests/", *(f"{lane}/" for lane in ASIDE), "parked/")
"""Folders of a checkpoint that are not copied as they are: owners, work under way, batches."""
_MOMENTARY = frozenset({"pulse.json", "failure.json"})


@dataclass(slots=True)
class CheckpointDocuments:
    """The documents of one checkpoint."""

    name: str
    store: Store
    life: str | None
    ended: dict[str, int]
    """The newest batch that was settled at the start, by lane; without the stream."""
    documents: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, dict[int, tuple[str, bytes]]] = field(default_factory=dict)
    """Manifests by lane and batch: the name of the file in the checkpoint, and its bytes."""
    selections: dict[tuple[str, int], tuple[str, bytes]] = field(default_factory=dict)
    """What unfinished batches beside the stream write, by lane and number."""
    parked: list[ParkedBatch] = field(default_factory=list)

    @classmethod
    def begin(cls, name: str, place: str, marks: Mapping[str, int]) -> CheckpointDocuments:
        """Note the pipeline's life and its unfinished replays; `marks` are the ledger's."""
        store = at(place)
        checkpoint = Checkpoint.find(store, pipeline=name)
        if checkpoint is None and any(app.startswith(f"distributary/{name}/") for app in marks):
            raise CheckpointError(
                f"the checkpoint of pipeline {name} is lost, so that it cannot be backed up",
                code=ErrorCode.CHECKPOINT_LOST,
                where=place,
                evidence="the lake has batches of this pipeline",
                next_step="`distributary recover FILE` makes it again; then take the backup",
            )
        life = checkpoint.life if checkpoint else None
        ended = {lane: marks.get(app_id(name, life or "", lane), -1) for lane in ASIDE}
        progress = cls(name, store, life, ended)
        progress._read_selections()
        return progress

    def check_life(self) -> None:
        """Raise MovedError if the pipeline was reset meanwhile."""
        checkpoint = Checkpoint.find(self.store, pipeline=self.name)
        if (checkpoint.life if checkpoint else None) != self.life:
            raise MovedError(f"pipeline {self.name} was reset")

    def app(self, lane: str) -> str:
        """Return the application of this life's marks."""
        return app_id(self.name, self.life or "", lane)

    def read(self, parking: str, lake: str) -> None:
        """Read the documents; manifests last, so that every parked batch has one."""
        self.parked = parked(parking, lake=lake)
        for file in self.store.files(recursive=True):
            name = file.name
            if name.startswith(_NOT_PROGRESS) or name in _MOMENTARY:
                continue
            self.documents[name] = read_document(self.store, name)
        for lane, folder in FOLDERS.items():
            self.manifests[lane] = {
                int(match[1]): (file.name, b"")
                for file in self.store.files(folder)
                if (match := _MANIFEST.fullmatch(file.name.rpartition("/")[2]))
            }
        self._read_selections()
        if not any(name.startswith("files/") for name in self.documents):
            # only the checkpoint has the numbers of files, so only its manifests count
            self._read_copy(lake)

    def _read_copy(self, lake: str) -> None:
        """Use the lake's copy of the newest manifest if the checkpoint is older."""
        copy = ManifestCopy(lake, self.name).read()
        if copy is not None and copy.life == self.life:
            data = read_document(at(layout.pipeline(lake, self.name)), "decided-stream.json")
            known = (f"manifests/{copy.batch:020d}.json", data)
            self.manifests["stream"].setdefault(copy.batch, known)

    def _read_selections(self) -> None:
        for lane in ASIDE:
            for number in unfinished(self.store, lane):
                if (lane, number) not in self.selections:
                    name = f"{lane}/selection-{number:08d}.parquet"
                    self.selections[lane, number] = name, read_document(self.store, name)

    def manifest(self, lane: str, batch: int) -> tuple[str, bytes]:
        """Return the name and bytes of a manifest's file. Raises MovedError."""
        known = self.manifests[lane].get(batch)
        if known is None:
            raise MovedError(f"pipeline {self.name} has no manifest of batch {batch}")
        if not known[1]:
            known = known[0], read_document(self.store, known[0])
            self.manifests[lane][batch] = known
        return known

    def decided(self, lane: str, batch: int) -> tuple[Manifest, bytes]:
        """Return a decided batch and its text. Raises MovedError."""
        name, data = self.manifest(lane, batch)
        text = unpacked(data) if name.endswith(".zst") else data
        where = f"{self.store.address}/{name}"
        try:
            document = unseal(text, where=where, next_step=_PUT_BACK)
            return Manifest.from_json(document.decode()), text
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                "a manifest cannot be read, so that the pipeline cannot be backed up",
                where=where,
                evidence=f"{type(error).__name__}: {error}",
                next_step=_PUT_BACK,
            ) from error
