"""Messages of a topic for people: of a real broker, decoded with schemas of a real registry."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from distributary.errors import ConfigError, ErrorCode
from distributary.model.record import Format
from distributary.operations.messages import MessagePage, browse
from distributary.source.source_entry import Browsing
from distributary_lab.simulate.game_records import GamesPlan
from tests.lakes.games import Games
from tests.lakes.orders import ORDER, avro, avro_stream, order
from tests.lakes.streams import Stream
from tests.registry.frames import frame
from tests.services.secured import SecuredServices


@pytest.fixture
def stream(services: SecuredServices, tmp_path: Path) -> Stream:
    """Thirty orders, a message without a value, and two that nobody can read."""
    made = avro_stream(services, tmp_path)
    made.registry.register(made.subject, json.dumps(ORDER), format=Format.AVRO)
    known = made.registry.latest(made.subject).id
    orders = [
        frame(avro(ORDER, [order(number)]), schema_id=known, indexes=None) for number in range(30)
    ]
    missing = frame(b"\x00", schema_id=999_999, indexes=None)
    keys = [str(number).encode() for number in range(30)]
    made.topics.send(made.topic, [*orders, b"plain", missing], keys=[*keys, b"\xff", None])
    return made


def offsets(page: MessagePage) -> list[int]:
    return [message.offset for message in page.messages]


def test_the_newest_messages_come_without_a_run(stream: Stream) -> None:
    page = browse(stream.pipeline(), Browsing(most=4))
    assert offsets(page) == [28, 29, 30, 31]
    assert page.source.bounds == {(stream.topic, 0): (0, 32)}
    good, _, plain, unknown = page.messages
    assert good.key == b"28" and not good.error and good.type == stream.topic
    assert "order_id: 28" in good.insight.text and "Zoë" in good.insight.text
    assert f"{stream.subject} v1" in good.insight.schema
    assert plain.error.startswith("BAD_MAGIC") and plain.value == b"plain"
    assert "999999 (not in the registry)" in unknown.insight.schema
    shown = page.as_dict()
    assert (shown["start"], shown["next"], shown["end"]) == (28, 32, 32)
    assert shown["messages"][2]["key"]["kind"] == "hex"
    # only the cache of schemas is there: no claim, no ledger, no table
    left = [each.relative_to(stream.lake) for each in stream.lake.rglob("*") if each.is_file()]
    assert left and {each.parts[2] for each in left} == {"schemas"}


@pytest.mark.parametrize(
    ("start", "found"),
    [(0, [0, 1]), (29, [29, 30]), (31, [31]), (32, []), (10**18, [])],
)
def test_messages_from_an_offset_on(stream: Stream, start: int, found: list[int]) -> None:
    wanted = Browsing((stream.topic, 0), start, most=2)
    assert offsets(browse(stream.pipeline(), wanted)) == found


def test_messages_from_a_time_on(stream: Stream) -> None:
    every = browse(stream.pipeline(), Browsing(start=0, most=100)).messages
    newest = every[-1].timestamp
    assert newest is not None
    for moment, first in (
        (datetime(2000, 1, 1, tzinfo=UTC), 0),
        (newest, next(each.offset for each in every if each.timestamp == newest)),
        (newest + timedelta(days=1), None),
    ):
        page = browse(stream.pipeline(), Browsing(start=moment, most=1))
        assert offsets(page) == ([] if first is None else [first])


def test_only_partitions_of_the_pipeline_can_be_read(stream: Stream) -> None:
    for place in ((stream.topic, 1), ("__consumer_offsets", 0)):
        with pytest.raises(ConfigError) as caught:
            browse(stream.pipeline(), Browsing(place))
        assert caught.value.code is ErrorCode.NOT_FOUND


def test_an_empty_topic_has_no_messages(services: SecuredServices, tmp_path: Path) -> None:
    stream = avro_stream(services, tmp_path)
    page = browse(stream.pipeline(), Browsing())
    assert page.messages == () and page.as_dict()["messages"] == []
    assert (page.as_dict()["start"], page.as_dict()["end"]) == (0, 0)


def test_a_source_without_offsets_says_so(tmp_path: Path) -> None:
    pipeline = Games(tmp_path, GamesPlan(games=1, versions=1, records=1)).pipeline()
    with pytest.raises(ConfigError, match="no messages to look at"):
        browse(pipeline, Browsing())
