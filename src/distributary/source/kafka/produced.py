"""Cards of the topics and subjects that `produce` created, which are outside of any lake.

A producer writes them, and `clean` removes what they name. They are in the user's state folder,
because a producer does not know which lake will read its topic. A topic is identified by its id in
the cluster. A subject is identified by the cluster that it was created for and by its schema ids,
because names and addresses can be reused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from distributary.store import disk

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ProducedTopic:
    """One card: the topic and the subjects that a producer created."""

    cluster: str
    topic: str
    """Name of the topic to which messages were sent."""
    topic_id: str | None
    """Id of the topic, if the producer created it."""
    registry: str
    subjects: tuple[str, ...]
    """The subjects without any version before, in the order of their creation."""
    schema_ids: Mapping[str, tuple[int, ...]]
    """Ids of all registered schemas, by subject."""
    path: Path
    """Path of the card."""


def cards_folder() -> Path:
    """Return the folder of the cards."""
    return platformdirs.user_state_path("distributary") / "produced"


def new_card() -> Path:
    """Return the path for a new card."""
    return cards_folder() / f"{uuid.uuid4().hex}.json"


def cards() -> Iterator[ProducedTopic]:
    """Yield all cards that can be read."""
    for path in sorted(cards_folder().glob("*.json")):
        try:
            content = json.loads(path.read_text("utf-8"))
            if content.pop("format") != _FORMAT:
                continue
            ids = {name: tuple(numbers) for name, numbers in content.pop("schema_ids").items()}
            subjects = tuple(content.pop("subjects"))
            yield ProducedTopic(**content, subjects=subjects, schema_ids=ids, path=path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # nothing may be deleted because of a damaged card
            continue


def write_card(card: ProducedTopic) -> None:
    """Write a card, or replace it."""
    content = {"format": _FORMAT, **asdict(card)}
    del content["path"]
    card.path.parent.mkdir(parents=True, exist_ok=True)
    disk.replace(card.path, (json.dumps(content, indent=2) + "\n").encode())
