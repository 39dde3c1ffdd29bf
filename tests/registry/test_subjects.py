"""Which schema ids a record of a type may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode
from distributary.registry.message_choice import subject_verdict

WRONG = ErrorCode.WRONG_SUBJECT


@pytest.mark.parametrize(
    ("rule", "subjects", "existing", "known", "verdict"),
    [
        ("any", ["go-value"], ["chess-value", "go-value"], ["go"], None),
        ("{type}-value", ["chess-value"], [], [], None),
        ("{type}-value", ["chess"], ["chess"], [], WRONG),
        ("{type}-value", [], [], [], WRONG),
        ("games.{type}", ["games.chess", "other"], [], [], None),
        ("auto", ["chess-value"], ["chess-value"], [], None),
        ("auto", ["chess"], ["chess"], [], None),
        ("auto", ["go-value", "chess-value"], ["chess-value"], ["go"], None),
        ("auto", ["go-value"], ["chess-value", "go-value"], [], WRONG),
        ("auto", ["go-value"], ["chess", "go-value"], [], WRONG),
        ("auto", ["go-value"], ["go-value"], ["go", "chess"], WRONG),
        ("auto", ["go"], ["go"], ["go"], WRONG),
        ("auto", ["go-value"], ["go-value"], ["chess"], None),
        ("auto", ["go-value", "games"], ["go-value", "games"], ["go"], None),
        ("auto", ["games-value"], ["games-value"], ["go"], None),
        ("auto", [], [], ["go"], None),
        ("auto", ["Chess-value"], ["Chess-value"], ["Chess"], None),
        ("auto", ["CHESS"], ["CHESS"], ["CHESS", "go"], None),
        ("auto", ["Chess-value"], ["Chess-value", "chess-value"], ["Chess"], WRONG),
        ("auto", ["Chess-value", "go"], ["Chess-value", "go"], ["Chess", "go"], None),
        ("auto", [], ["chess-value"], [], WRONG),
    ],
)
def test_verdicts(
    rule: str, subjects: list[str], existing: list[str], known: list[str], verdict: ErrorCode | None
) -> None:
    found = subject_verdict("chess", subjects, existing.__contains__, rule=rule, known_types=known)
    assert found is verdict


def test_the_registry_is_not_asked_when_the_answer_is_known() -> None:
    def never(subject: str) -> bool:
        raise AssertionError(subject)

    assert subject_verdict("chess", ["chess-value"], never) is None
    assert subject_verdict("chess", [], never, rule="any") is None
    assert subject_verdict("chess", ["x"], never, rule="{type}") is WRONG


SUBJECTS = st.lists(st.sampled_from(["a", "a-value", "b", "b-value", "c-value"]), unique=True)


@given(SUBJECTS, SUBJECTS, st.lists(st.sampled_from("abc"), unique=True))
def test_the_order_does_not_matter_and_home_is_always_right(
    subjects: list[str], existing: list[str], known: list[str]
) -> None:
    def verdict(of: list[str], types: list[str]) -> ErrorCode | None:
        return subject_verdict("a", of, existing.__contains__, known_types=types)

    found = verdict(subjects, known)
    assert found is verdict(subjects[::-1], known[::-1])
    if {"a", "a-value"} & set(subjects):
        assert found is None
    elif not existing and not known:
        assert found is None
    assert found in (None, WRONG)


@given(st.text("{}typex", max_size=12))
def test_a_hostile_type_is_text_and_nothing_else(name: str) -> None:
    rule = "{type}-value"
    assert subject_verdict(name, [f"{name}-value"], bool, rule=rule) is None
