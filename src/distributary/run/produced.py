"""Topics and subjects that the simulators made for a pipeline, and nobody had before.

A topic goes when a card has its id. A subject goes when a card says that it was not there before,
when nobody else has added a version to it since, and when no simulated topic of another pipeline
uses it: else the card of that topic inherits it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from distributary.config.kafka import KafkaSource
from distributary.config.pipeline import PipelineConfig
from distributary.config.registry import Registry
from distributary.errors import RegistryError, SchemaNotFoundError
from distributary.registry.http import HttpRegistry
from distributary.run.removal import Removal
from distributary.simulate.kafka_topics import Topics
from distributary.simulate.made import Made, cards, write_card
from distributary.source.kafka_offsets import Broker

TOPIC, SUBJECT = "topic", "subject"

_log = logging.getLogger(__name__)


def plan_produced(config: PipelineConfig) -> list[Removal]:
    """What was made for this pipeline; asks broker and registry only if a card says something."""
    found = _Found.of(config)
    if found is None:
        return []
    records = _records(found.source, found.topics)
    servers = found.source.bootstrap_servers
    address = next(iter(config.registry.places if config.registry else ()), "").rstrip("/")
    return [
        *(Removal(TOPIC, f"{servers}/{name}", name, records[name]) for name in found.topics),
        *(Removal(SUBJECT, f"{address}/subjects/{name}", name) for name in found.subjects),
    ]


def remove_produced(config: PipelineConfig, removals: Iterable[Removal]) -> None:
    """Do what was shown, as far as it still holds."""
    shown = {(removal.kind, removal.table) for removal in removals}
    found = _Found.of(config) if shown else None
    if found is None:
        return
    subjects = [name for name in found.subjects if (SUBJECT, name) in shown]
    if subjects and config.registry is not None:
        with HttpRegistry(config.registry) as registry:
            for subject in subjects:
                _delete(registry, subject)
    topics = Topics(found.source.client_options())
    for name in found.topics:
        if (TOPIC, name) in shown:
            topics.delete(name)
    _hand_over(found)


def _delete(registry: HttpRegistry, subject: str) -> None:
    try:
        registry.set_compatibility(subject, None)
        registry.delete_subject(subject, permanent=True)
    except RegistryError as error:
        if error.retryable:
            raise
        # somebody refers to it: then it is no longer for us to remove
        _log.warning("the subject %s stays: %s", subject, error)


@dataclass(frozen=True, slots=True)
class _Found:
    source: KafkaSource
    topics: tuple[str, ...]
    subjects: tuple[str, ...]
    """In the order in which they can go: what refers to others before these."""
    mine: tuple[Made, ...]
    others: tuple[Made, ...]
    """The cards of the same cluster whose topics this pipeline does not read."""

    @classmethod
    def of(cls, config: PipelineConfig) -> _Found | None:
        source, known = config.source, tuple(cards())
        if not isinstance(source, KafkaSource) or not any(_reads(source, c) for c in known):
            return None
        topics = Topics(source.client_options())
        cluster = topics.cluster()
        here = [card for card in known if card.cluster == cluster]
        mine = tuple(card for card in here if _reads(source, card))
        others = tuple(card for card in here if not _reads(source, card))
        made = {(card.topic, card.topic_id) for card in mine}
        there = [topics.find(name) for name in dict.fromkeys(card.topic for card in mine)]
        return cls(
            source,
            tuple(topic.name for topic in there if topic and (topic.name, topic.id) in made),
            _own_subjects(config.registry, mine, others),
            mine,
            others,
        )


def _reads(source: KafkaSource, card: Made) -> bool:
    if source.topic_pattern is not None:
        return re.fullmatch(source.topic_pattern, card.topic) is not None
    return card.topic in source.topics


def _own_subjects(
    config: Registry | None, mine: Sequence[Made], others: Sequence[Made]
) -> tuple[str, ...]:
    addresses = {address.rstrip("/") for address in (config.places if config else ())}
    near = [card for card in mine if card.registry in addresses]
    wanted = {subject for card in others for subject in card.schema_ids}
    made = dict.fromkeys(name for card in near for name in card.subjects)
    candidates = [name for name in made if name not in wanted]
    if config is None or not candidates:
        return ()
    with HttpRegistry(config) as registry:
        return tuple(
            subject
            for subject in reversed(candidates)
            if _is_ours(registry, subject, {i for c in near for i in c.schema_ids.get(subject, ())})
        )


def _is_ours(registry: HttpRegistry, subject: str, ids: set[int]) -> bool:
    try:
        versions = registry.versions(subject)
        return bool(versions) and {registry.version(subject, v).id for v in versions} <= ids
    except SchemaNotFoundError:
        return False


def _records(source: KafkaSource, topics: Sequence[str]) -> dict[str, int]:
    broker = Broker(source.client_options())
    partitions = broker.partitions(topics, None)
    first, last = broker.earliest(partitions), broker.latest(partitions)
    return {
        name: sum(last[one] - first[one] for one in partitions if one[0] == name) for name in topics
    }


def _hand_over(found: _Found) -> None:
    """The cards go; what others still use is theirs from now on."""
    left = {subject: card for card in found.mine for subject in card.subjects}
    for heir in found.others:
        gained = [subject for subject in left if subject in heir.schema_ids]
        if not gained:
            continue
        ids = dict(heir.schema_ids)
        for subject in gained:
            before = left.pop(subject).schema_ids.get(subject, ())
            ids[subject] = tuple(sorted({*ids[subject], *before}))
        write_card(replace(heir, subjects=(*heir.subjects, *gained), schema_ids=ids))
    for card in found.mine:
        card.path.unlink(missing_ok=True)
