from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from distributary.decode.base import DecodeLimits
from distributary.decode.formats import decoder_for
from distributary.errors import ErrorCode, SchemaNotFoundError
from distributary.model.names import check_type_name
from distributary.registry.message_choice import subject_verdict
from distributary_lab.simulate.base import DEFAULT_KINDS, BadKind, Sent, SinkMessage
from distributary_lab.simulate.game_records import GamesPlan

Send = Callable[[GamesPlan], tuple[list[SinkMessage], Sent]]

HOSTILE = {
    BadKind.PATH_NAME: "../../etc/passwd",
    BadKind.SQL_NAME: "'; DROP TABLE x; --",
    BadKind.MARKUP_NAME: "<script>alert(1)</script>",
    BadKind.RESERVED_NAME: "CON",
    BadKind.EMOJI_NAME: "\U0001f3ae",
    BadKind.LONG_NAME: "a" * 10_000,
    BadKind.EMPTY_NAME: "",
}


def only(kind: BadKind, *, bad: int = 60, **more: Any) -> GamesPlan:
    return GamesPlan(versions=2, records=10, bad=bad, bad_kinds=(kind,), **more)


def bad_ones(messages: list[SinkMessage]) -> list[SinkMessage]:
    return [m for m in messages if m.type is None]


def test_bad_records_come_on_top_and_in_rotation(send: Send) -> None:
    plan = GamesPlan(bad=35)
    messages, sent = send(plan)
    assert sent.good == 250
    assert sent.bad == len(bad_ones(messages)) == 35
    assert sent.messages == len(messages) == 285
    assert set(sent.bad_by_code.values()) == {2, 3}
    assert set(sent.bad_by_code) == {str(kind.code) for kind in DEFAULT_KINDS}
    assert sum(sent.bad_by_code.values()) == 35


def test_every_default_kind_has_a_code_of_its_own() -> None:
    assert len({kind.code for kind in BadKind}) == len(BadKind) == len(DEFAULT_KINDS) + 1
    assert BadKind.OVERSIZE_PAYLOAD not in DEFAULT_KINDS


def test_bad_records_are_spread_and_never_first(send: Send) -> None:
    messages, sent = send(GamesPlan(bad=50))
    places = [i for i, m in enumerate(messages) if m.type is None]
    assert places[0] > 0
    gaps = [b - a for a, b in pairwise(places)]
    assert max(gaps) < 15
    assert places[0] == sent.first_bad["NOT_AN_ENVELOPE"]
    assert all(messages[place].type is None for place in sent.first_bad.values())
    assert [m for m in messages if m.type] == send(GamesPlan())[0]


def test_more_bad_than_good_is_possible(send: Send) -> None:
    messages, sent = send(GamesPlan(games=1, versions=1, records=2, bad=100))
    assert (sent.good, sent.bad, len(messages)) == (2, 100, 102)


def test_not_a_wrapper_never_parses(send: Send, reader: Any) -> None:
    messages, sent = send(only(BadKind.NOT_A_WRAPPER, bad=3_000))
    assert sent.bad_by_code == {"NOT_AN_ENVELOPE": 3_000}
    for message in bad_ones(messages):
        with pytest.raises(DecodeError):
            reader.unwrap(message.value)
    assert len({m.value for m in bad_ones(messages)}) > 2_900


def test_an_unknown_schema_id_is_in_no_registry(send: Send, reader: Any) -> None:
    messages, _ = send(only(BadKind.UNKNOWN_SCHEMA_ID))
    ids = {reader.unwrap(m.value).schema_id for m in bad_ones(messages)}
    assert 1 <= len(ids) <= 3
    for unknown in ids:
        with pytest.raises(SchemaNotFoundError):
            reader.registry.by_id(unknown)


def test_a_broken_payload_does_not_decode(send: Send, reader: Any) -> None:
    messages, _ = send(only(BadKind.BROKEN_PAYLOAD, bad=500))
    for message in bad_ones(messages):
        wrapper = reader.unwrap(message.value)
        schema = reader.registry.by_id(wrapper.schema_id)
        assert schema.version_in(f"{wrapper.game_name}-value") is not None
        with pytest.raises(DecodeError):
            reader.parse(wrapper.schema_id, wrapper.payload)


def test_the_decoder_gives_the_promised_codes(send: Send, reader: Any) -> None:
    kinds = (BadKind.BROKEN_PAYLOAD, BadKind.OVERSIZE_PAYLOAD)
    messages, _ = send(GamesPlan(bad=20, bad_kinds=kinds, oversize_bytes=5_000))
    limits = DecodeLimits(max_payload_bytes=5_000)
    for n, message in enumerate(bad_ones(messages)):
        wrapper = reader.unwrap(message.value)
        schema = reader.registry.by_id(wrapper.schema_id)
        decoder = decoder_for(schema, schema.message, limits)
        # an event of nothing but defaults stands beside it, and stays good
        (failure,) = decoder.decode(pa.array([b"", wrapper.payload], pa.binary())).failed
        assert (failure.index, failure.code) == (1, kinds[n % 2].code)


@pytest.mark.parametrize(
    ("kind", "value"), [(BadKind.NULL_VALUE, None), (BadKind.EMPTY_VALUE, b"")]
)
def test_no_value_is_never_framed(send: Send, kind: BadKind, value: bytes | None) -> None:
    messages, _ = send(only(kind, framed=1.0))
    assert {m.value for m in bad_ones(messages)} == {value}
    assert all(m.key for m in bad_ones(messages))


def test_a_wrapper_without_a_type_has_everything_else(send: Send, reader: Any) -> None:
    messages, _ = send(only(BadKind.NO_TYPE))
    for message in bad_ones(messages):
        wrapper = reader.unwrap(message.value)
        assert not wrapper.HasField("game_name")
        assert reader.parse(wrapper.schema_id, wrapper.payload).game_name


def test_a_wrapper_without_a_schema_id_has_everything_else(send: Send, reader: Any) -> None:
    messages, _ = send(only(BadKind.NO_SCHEMA_ID))
    for message in bad_ones(messages):
        wrapper = reader.unwrap(message.value)
        assert wrapper.game_name
        assert wrapper.payload
        assert not wrapper.HasField("schema_id")


@pytest.mark.parametrize("games", [1, 2, 5])
def test_a_wrong_subject_is_a_real_schema_of_another(send: Send, reader: Any, games: int) -> None:
    messages, _ = send(only(BadKind.WRONG_SUBJECT, games=games))
    for message in bad_ones(messages):
        wrapper = reader.unwrap(message.value)
        schema = reader.registry.by_id(wrapper.schema_id)
        assert schema.version_in(f"{wrapper.game_name}-value") is None
        subjects = {place.subject for place in schema.subjects}
        exists = reader.registry.subjects().__contains__
        verdict = subject_verdict(wrapper.game_name, subjects, exists)
        assert verdict is BadKind.WRONG_SUBJECT.code


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_hostile_names_travel_with_a_valid_payload(send: Send, reader: Any, kind: BadKind) -> None:
    messages, _ = send(only(kind, bad=5))
    for message in bad_ones(messages):
        wrapper = reader.unwrap(message.value)
        assert wrapper.HasField("game_name")
        assert wrapper.game_name == HOSTILE[kind]
        assert reader.parse(wrapper.schema_id, wrapper.payload).user_name
        assert message.key == HOSTILE[kind].encode()
        assert check_type_name(wrapper.game_name) is kind.code


def test_an_oversize_payload_is_valid_but_for_its_size(send: Send, reader: Any) -> None:
    plan = only(BadKind.OVERSIZE_PAYLOAD, bad=40, oversize_bytes=70_000)
    messages, sent = send(plan)
    assert sent.bad_by_code == {str(ErrorCode.PAYLOAD_TOO_LARGE): 40}
    for message in bad_ones(messages):
        wrapper = reader.unwrap(message.value)
        assert len(wrapper.payload) > 70_000
        assert len(reader.parse(wrapper.schema_id, wrapper.payload).user_name) == 70_000


@pytest.mark.parametrize(("framed", "share"), [(0.0, 0), (1.0, 1)])
def test_bad_records_are_framed_like_good_ones(send: Send, framed: float, share: int) -> None:
    messages, _ = send(GamesPlan(bad=64, framed=framed))
    with_value = [m.value for m in bad_ones(messages) if m.value]
    assert {int(value[0] == 0) for value in with_value} == {share}


def test_a_selection_of_kinds_is_all_there_is(send: Send) -> None:
    kinds = (BadKind.NULL_VALUE, BadKind.NO_TYPE)
    _, sent = send(GamesPlan(bad=7, bad_kinds=kinds))
    assert Counter(sent.bad_by_code) == {"NULL_VALUE": 4, "MISSING_TYPE": 3}
