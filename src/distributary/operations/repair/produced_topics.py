"""Topics and subjects that `produce` or `demo` created for a pipeline, as their cards say.

A topic is removed if a card has its id. A subject is removed if a card says that it did not exist
before, if no other program has added a version to it since, and if no simulated topic of another
pipeline uses it: otherwise the card of that topic inherits it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from distributary.config.pipeline_config import PipelineConfig
from distributary.config.registry import RegistryConfig
from distributary.config.sources.kafka import KafkaSourceConfig, kafka_of
from distributary.engine.progress.removal import Removal
from distributary.errors import RegistryError, SchemaNotFoundError
from distributary.registry.http.http_registry import HttpRegistry
from distributary.source.kafka.broker import Broker
from distributary.source.kafka.produced import ProducedTopic, cards, write_card

TOPIC, SUBJECT = "topic", "subject"

_log = logging.getLogger(__name__)


def plan_produced(config: PipelineConfig) -> list[Removal]:
    """Return the removals for this pipeline; asks broker and registry only if there is a card."""
    simulated = _Simulated.of(config)
    if simulated is None:
        return []
    records = _records(simulated.source, simulated.topics)
    servers = simulated.source.bootstrap_servers
    address = next(iter(config.registry.places if config.registry else ()), "").rstrip("/")
    return [
        *(Removal(TOPIC, f"{servers}/{name}", name, records[name]) for name in simulated.topics),
        *(Removal(SUBJECT, f"{address}/subjects/{name}", name) for name in simulated.subjects),
    ]


def remove_produced(config: PipelineConfig, removals: Iterable[Removal]) -> None:
    """Do the previewed removals, as far as they still apply."""
    shown = {(removal.kind, removal.table) for removal in removals}
    simulated = _Simulated.of(config) if shown else None
    if simulated is None:
        return
    subjects = [name for name in simulated.subjects if (SUBJECT, name) in shown]
    if subjects and config.registry is not None:
        with HttpRegistry(config.registry) as registry:
            for subject in subjects:
                _delete(registry, subject)
    broker = Broker(simulated.source.client_options())
    for name in simulated.topics:
        if (TOPIC, name) in shown:
            broker.delete(name)
    _hand_over(simulated)


def _delete(registry: HttpRegistry, subject: str) -> None:
    try:
        registry.set_compatibility(subject, None)
        registry.delete_subject(subject, permanent=True)
    except RegistryError as error:
        if error.retryable:
            raise
        # another schema refers to it, so it must not be removed
        _log.warning("the subject %s stays: %s", subject, error)


@dataclass(frozen=True, slots=True)
class _Simulated:
    source: KafkaSourceConfig
    topics: tuple[str, ...]
    subjects: tuple[str, ...]
    """In the order of removal: a subject comes before the subjects that it refers to."""
    mine: tuple[ProducedTopic, ...]
    others: tuple[ProducedTopic, ...]
    """The cards of the same cluster whose topics this pipeline does not read."""

    @classmethod
    def of(cls, config: PipelineConfig) -> _Simulated | None:
        source, known = kafka_of(config.source), tuple(cards())
        if source is None or not any(_reads(source, c) for c in known):
            return None
        broker = Broker(source.client_options())
        cluster = broker.cluster()
        here = [card for card in known if card.cluster == cluster]
        mine = tuple(card for card in here if _reads(source, card))
        others = tuple(card for card in here if not _reads(source, card))
        made = {(card.topic, card.topic_id) for card in mine}
        there = broker.described(list(dict.fromkeys(card.topic for card in mine)))
        return cls(
            source,
            tuple(name for name, topic in there.items() if (name, topic.id) in made),
            _own_subjects(config.registry, mine, others),
            mine,
            others,
        )


def _reads(source: KafkaSourceConfig, card: ProducedTopic) -> bool:
    return card.topic in source.topics_among([card.topic])


def _own_subjects(
    config: RegistryConfig | None, mine: Sequence[ProducedTopic], others: Sequence[ProducedTopic]
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


def _records(source: KafkaSourceConfig, topics: Sequence[str]) -> dict[str, int]:
    broker = Broker(source.client_options())
    partitions = broker.partitions(topics, None)
    first, last = broker.earliest(partitions), broker.latest(partitions)
    return {
        name: sum(last[one] - first[one] for one in partitions if one[0] == name) for name in topics
    }


def _hand_over(simulated: _Simulated) -> None:
    """Remove the cards, and give the subjects that others use to their cards."""
    left = {subject: card for card in simulated.mine for subject in card.subjects}
    for heir in simulated.others:
        gained = [subject for subject in left if subject in heir.schema_ids]
        if not gained:
            continue
        ids = dict(heir.schema_ids)
        for subject in gained:
            before = left.pop(subject).schema_ids.get(subject, ())
            ids[subject] = tuple(sorted({*ids[subject], *before}))
        write_card(replace(heir, subjects=(*heir.subjects, *gained), schema_ids=ids))
    for card in simulated.mine:
        card.path.unlink(missing_ok=True)
