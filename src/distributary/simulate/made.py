"""What a producer made outside of any lake: its card says which topic and subjects were not there.

Cards lie in the user's own folder, because a producer does not know who will read from its topic.
A topic is known again by the id that its cluster gave it, and a subject by the cluster beside which
it was made and by the ids of its schemas: names and addresses alone come back.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from distributary import durable
from distributary.model.schema import Format, WriterSchema
from distributary.registry.http import HttpRegistry
from distributary.registry.local import References
from distributary.simulate.kafka_topics import Topic

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Made:
    """One card."""

    cluster: str
    topic: str
    """Where the messages went."""
    topic_id: str | None
    """The id of that topic, if it was made for them."""
    registry: str
    subjects: tuple[str, ...]
    """The subjects that had no version before, in the order in which they were made."""
    schema_ids: Mapping[str, tuple[int, ...]]
    """The ids of everything that was registered, by subject."""
    path: Path
    """Where it lies."""


def cards_folder() -> Path:
    """Where cards lie."""
    return platformdirs.user_state_path("distributary") / "produced"


def cards() -> Iterator[Made]:
    """All cards that can be read."""
    for path in sorted(cards_folder().glob("*.json")):
        try:
            known = json.loads(path.read_text("utf-8"))
            if known.pop("format") != _FORMAT:
                continue
            ids = {name: tuple(found) for name, found in known.pop("schema_ids").items()}
            subjects = tuple(known.pop("subjects"))
            yield Made(**known, subjects=subjects, schema_ids=ids, path=path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # whatever it was, it is no word on which something may be deleted
            continue


def write_card(card: Made) -> None:
    """Write a card, or put another in its place."""
    content = {"format": _FORMAT, **asdict(card)}
    del content["path"]
    card.path.parent.mkdir(parents=True, exist_ok=True)
    durable.replace(card.path, (json.dumps(content, indent=2) + "\n").encode())


class Notes:
    """Writes the card of one producer, while it works."""

    def __init__(self, topic: Topic, *, cluster: str, registry: HttpRegistry, address: str) -> None:
        self._topic, self._cluster = topic, cluster
        self._address = address.rstrip("/")
        self._path = cards_folder() / f"{uuid.uuid4().hex}.json"
        self.registry = NotedRegistry(registry)

    def save(self) -> None:
        """Write down what is known by now; nothing if nothing was made."""
        noted = self.registry
        card = Made(
            cluster=self._cluster,
            topic=self._topic.name,
            topic_id=self._topic.id if self._topic.created else None,
            registry=self._address,
            subjects=tuple(noted.made),
            schema_ids={name: tuple(sorted(ids)) for name, ids in noted.schema_ids.items()},
            path=self._path,
        )
        if card.topic_id or card.schema_ids:
            write_card(card)


class NotedRegistry:
    """Passes everything on, and remembers which subjects were not there before."""

    def __init__(self, registry: HttpRegistry) -> None:
        self._registry = registry
        self.made: list[str] = []
        self.schema_ids: dict[str, set[int]] = {}

    def set_compatibility(self, subject: str, level: str) -> None:
        """Set the level of a subject."""
        self._look(subject)
        self._registry.set_compatibility(subject, level)

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Register a schema."""
        self._look(subject)
        schema_id = self._registry.register(subject, text, format=format, references=references)
        self.schema_ids[subject].add(schema_id)
        return schema_id

    def by_id(self, schema_id: int) -> WriterSchema:
        """The schema with this id."""
        return self._registry.by_id(schema_id)

    def _look(self, subject: str) -> None:
        if subject not in self.schema_ids:
            self.schema_ids[subject] = set()
            if not self._registry.versions(subject):
                self.made.append(subject)
