from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from distributary import errors
from distributary.errors import DistributaryError, ErrorCode, clean

CLASSES = sorted(
    (c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, DistributaryError)),
    key=lambda c: c.__name__,
)


def drawn_parents() -> dict[str, str | None]:
    """Class to parent, as the drawing at the top of the module says."""
    parents: dict[str, str | None] = {}
    line_of: list[str] = []
    for line in (errors.__doc__ or "").splitlines()[1:]:
        name = next((word for word in line.split() if word.endswith("Error")), None)
        if name is None:
            continue
        depth = line.index(name) // 4
        del line_of[depth:]
        parents[name] = line_of[-1] if line_of else None
        line_of.append(name)
    return parents


def drawn_exit_codes() -> dict[str, int]:
    lines = (line.split() for line in (errors.__doc__ or "").splitlines() if " exit " in line)
    return {next(w for w in words if w.endswith("Error")): int(words[-1]) for words in lines}


def test_drawing_is_the_tree() -> None:
    real = {c.__name__: c.__base__.__name__ if c.__base__ else "" for c in CLASSES}
    assert drawn_parents() == {**real, "DistributaryError": None}


def test_drawn_exit_codes_are_those_of_the_classes() -> None:
    real = {c.__name__: c.exit_code for c in CLASSES}
    for name, code in drawn_exit_codes().items():
        assert real[name] == code, name


def test_every_exit_code_is_documented() -> None:
    assert {c.exit_code for c in CLASSES} <= {1, 2, 75}


def test_whatever_asks_for_another_try_later_is_drawn_with_its_exit_code() -> None:
    unusual = {c.__name__ for c in CLASSES if c.exit_code != 1}
    assert unusual <= drawn_exit_codes().keys()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_class_survives_pickling(cls: type[DistributaryError]) -> None:
    error = cls(
        "what",
        code=ErrorCode.BATCH_FAILED,
        where="here",
        evidence="seen",
        next_step="do",
        table="silver_chess",
        batch=7,
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert again.as_dict() == error.as_dict()
    assert str(again) == str(error)
    assert again.code is ErrorCode.BATCH_FAILED
    assert again.context == {"table": "silver_chess", "batch": "7"}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_class_keeps_its_own_code_when_none_is_given(cls: type[DistributaryError]) -> None:
    again = pickle.loads(pickle.dumps(cls("what")))
    assert again.code is cls.code
    assert again.retryable is cls.retryable


def test_an_override_of_the_code_stays_with_its_instance() -> None:
    errors.SetupError("what", code=ErrorCode.CONNECTORS_MISSING)
    assert errors.SetupError("what").code is ErrorCode.JAVA_MISSING


def test_a_message_has_four_parts_in_order() -> None:
    error = DistributaryError("what", where="here", evidence="seen", next_step="do")
    assert [line.split(":")[0].strip() for line in str(error).splitlines()] == [
        "INTERNAL",
        "at",
        "seen",
        "next",
    ]


def test_parts_that_are_not_known_are_left_out() -> None:
    assert str(DistributaryError("what")).count("\n") == 0


def test_codes_are_unique_and_named_like_their_value() -> None:
    names = ErrorCode.__members__
    assert len(names) == len(set(ErrorCode)), "two names share a value"
    assert all(name == member.value for name, member in names.items())


def test_every_error_is_in_the_one_tree() -> None:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, BaseException):
            assert issubclass(value, DistributaryError)
            assert value.__name__.endswith("Error")


def test_every_code_has_its_place_in_the_docs() -> None:
    page = (Path(__file__).parent.parent / "docs" / "errors.md").read_text()
    missing = [code for code in ErrorCode if f'<a id="{code}"></a>' not in page]
    assert missing == []


def test_the_cause_at_the_end_of_a_long_message_is_kept_and_secrets_are_not() -> None:
    steps = "\n".join(f"  \x1b[31m↳\x1b[0m step {n} {'x' * 200}" for n in range(20))
    address = "http://user:hunter2@store/lake?sig=hunter2"
    text = clean(f"OSError: Generic S3 error\n GET {address}\n{steps}\n ↳ Connection refused\n")
    assert text.startswith("OSError: Generic S3 error; GET http://***@store/lake?***; step 0")
    assert text.endswith("; Connection refused")
    assert "hunter2" not in text and "\x1b" not in text and len(text) <= 400
