"""A line is the event that it was, and anything else is no event."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary import errors
from distributary.config.file.document import PipelineFileError, Problem, refuse
from distributary.errors import DistributaryError, ErrorCode
from distributary.model.manifest import Counts
from distributary.observe import events
from distributary.observe.events import Asked, Event, Failed, TableWritten, decode, encode
from tests.observe.test_events import EVERY_EVENT

KINDS = [
    each
    for each in vars(events).values()
    if isinstance(each, type) and issubclass(each, Event) and each is not Event
]
ERRORS = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, DistributaryError)
]
# also what no file would hold: half of a surrogate pair can come out of a record
TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)


@st.composite
def error(draw: st.DrawFn) -> DistributaryError:
    made = draw(st.sampled_from(ERRORS))(
        draw(TEXT),
        code=draw(st.sampled_from(ErrorCode)),
        where=draw(TEXT),
        evidence=draw(TEXT),
        next_step=draw(TEXT),
    )
    made.context = draw(st.dictionaries(TEXT, TEXT, max_size=3))
    return made


def event(kind: type[Event]) -> st.SearchStrategy[Any]:
    return st.builds(kind)


st.register_type_strategy(str, TEXT)
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(DistributaryError, error())
st.register_type_strategy(Counts, st.builds(Counts, *[st.integers(0)] * 5))
st.register_type_strategy(
    events.datetime,
    st.datetimes(
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45, seconds=7))])
    ),
)


def without_error(value: Event) -> tuple[object, ...]:
    """Errors are the same when their parts are, but are not equal."""
    found = getattr(value, "error", None)
    if not isinstance(found, DistributaryError):
        return (value,)
    same = DistributaryError("same")
    known = (type(found), found.as_dict(), found.exit_code, found.retryable)
    return replace(value, error="same"), known, str(same)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_decode_is_the_inverse_of_encode(kind: type[Event]) -> None:
    @given(event(kind))
    def check(value: Event) -> None:
        line = encode(value)
        assert "\n" not in line and line.isascii()
        again = decode(line)
        assert again is not None and type(again) is kind
        assert without_error(again) == without_error(value)

    check()


def test_a_batch_of_ten_thousand_tables_is_one_line() -> None:
    written = tuple(TableWritten(f"t{n}", "each", n, n, 1, "published") for n in range(10_000))
    settled = replace(EVERY_EVENT[4], written=written)
    assert decode(encode(settled)) == settled


def test_an_unknown_field_is_passed_over_and_a_missing_one_has_its_default() -> None:
    line = encode(EVERY_EVENT[0])
    assert decode(line.replace('"batch":1', '"batch":1,"mood":{"a":[]}')) == EVERY_EVENT[0]
    assert (
        decode(line.replace('"again":false,', "").replace(',"again":false', "")) == EVERY_EVENT[0]
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "null",
        "[]",
        '"x"',
        "{}",
        "[" * 100_000,
        '{"event":"Event","pipeline":"p"}',
        '{"event":"Nothing","pipeline":"p"}',
        '{"event":["Idle"],"pipeline":"p"}',
        '{"event":"Idle"}',
        '{"event":"Idle","pipeline":3}',
        '{"event":"Idle","pipeline":"p","at":"yesterday"}',
        '{"event":"Idle","pipeline":"p","batch":true}',
        '{"event":"BatchStarted","pipeline":"p"}',
        '{"event":"Failed","pipeline":"p","error":"x"}',
        '{"event":"BatchSettled","pipeline":"p","batch":1,"counts":[],"rows":1,"tables":1,"seconds":1}',
    ],
)
def test_anything_else_is_no_event(line: str) -> None:
    assert decode(line) is None


def test_an_error_of_another_module_is_told_as_its_nearest_class() -> None:
    refused = refuse("f.yaml", [Problem("f.yaml", 1, 1, "name", ErrorCode.CONFIG_INVALID, "m")])
    assert type(refused) is PipelineFileError
    again = decode(encode(Failed(pipeline="p", error=refused)))
    assert isinstance(again, Failed)
    assert type(again.error) is errors.ConfigError
    assert (again.error.exit_code, again.error.what) == (2, refused.what)


def test_an_error_code_of_another_version_is_still_an_error() -> None:
    line = encode(Failed(pipeline="p", error=errors.SourceError("gone")))
    again = decode(line.replace("SOURCE_INVALID", "SOURCE_HAUNTED"))
    assert isinstance(again, Failed)
    assert (again.error.code, again.error.what) == (ErrorCode.INTERNAL, "gone")


def test_parts_of_events_are_events_of_their_own_kind() -> None:
    asked = events.RegistryAsked(pipeline="p", calls=(Asked("ids", "ok", 1, 0.5),))
    assert decode(encode(asked)) == asked
