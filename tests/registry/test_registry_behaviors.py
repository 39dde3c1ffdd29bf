"""The behaviour of a registry in a folder."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import (
    ConfigError,
    ErrorCode,
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaNotFoundError,
)
from distributary.model.record import Format, SubjectVersion
from distributary.registry.base import Reference, SchemaRegistry
from distributary.registry.compatibility.levels import Level
from distributary.registry.folder import FileRegistry

PROTO3 = 'syntax = "proto3";'
V1 = PROTO3 + "package game; message Chess { string player = 1; }"
V2 = PROTO3 + "package game; message Chess { string player = 1; int32 rating = 2; }"
V3 = PROTO3 + "package game; message Chess { string player = 1; int64 rating = 2; }"
BROKEN = PROTO3 + "package game; message Chess { int32 player = 1; }"

HOSTILE = [
    "../../x",
    "/etc/passwd",
    "..",
    ".",
    "a/b",
    "a\\b",
    "nul\x00byte",
    "new\nline",
    "\x1b[2J",
    "<script>alert(1)</script>",
    "Robert'); DROP TABLE subjects;--",
    "x" * 10_000,
    "schach-♟-value",
    "مباراة",
    "\ud800",
    " ",
    "con",
    "config.json",
    "a~0123456789abcdef0123456789abcdef",
    "%2e%2e",
]


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], FileRegistry]:
    """Makes the registry; a second one sees what the first one did."""
    return lambda: FileRegistry(tmp_path / "schemas", durable=False)


@pytest.fixture
def registry(make: Callable[[], FileRegistry]) -> FileRegistry:
    made = make()
    # a first write, so that a registry in a folder exists
    made.set_compatibility(None, Level.BACKWARD)
    return made


def message(number: int) -> str:
    return PROTO3 + f"message M{number} {{ string a = 1; }}"


def test_it_is_a_schema_registry(registry: FileRegistry) -> None:
    seam: SchemaRegistry = registry
    assert seam.subjects() == ()


def test_what_was_registered_comes_back_compiled(registry: FileRegistry) -> None:
    schema_id = registry.register("chess-value", V1)
    found = registry.by_id(schema_id)
    assert (found.id, found.format) == (schema_id, Format.PROTOBUF)
    assert (found.message, found.messages) == ("game.Chess", ("game.Chess",))
    assert found.subjects == (SubjectVersion("chess-value", 1),)
    assert found == registry.latest("chess-value") == registry.version("chess-value", 1)
    assert registry.text(schema_id) == V1


def test_versions_grow_and_latest_follows(registry: FileRegistry) -> None:
    first, second = registry.register("chess-value", V1), registry.register("chess-value", V2)
    assert first != second
    assert registry.versions("chess-value") == (1, 2)
    assert registry.latest("chess-value").id == second
    assert registry.version("chess-value", 1).id == first


def test_the_same_text_again_is_the_same_id_and_no_new_version(registry: FileRegistry) -> None:
    first = registry.register("chess-value", V1)
    registry.register("chess-value", V2)
    assert registry.register("chess-value", V1) == first
    assert registry.versions("chess-value") == (1, 2)
    assert registry.latest("chess-value").id != first


def test_the_same_text_under_another_subject_is_the_same_id(registry: FileRegistry) -> None:
    first = registry.register("chess-value", V1)
    assert registry.by_id(first).subjects == (SubjectVersion("chess-value", 1),)
    assert registry.register("archive-value", V1) == first
    assert registry.by_id(first).subjects == (
        SubjectVersion("archive-value", 1),
        SubjectVersion("chess-value", 1),
    )
    assert registry.register("archive-value", V2) != first


def test_another_registry_object_sees_everything_at_once(
    make: Callable[[], FileRegistry], registry: FileRegistry
) -> None:
    reader = make()
    first = registry.register("chess-value", V1)
    assert reader.by_id(first).subjects == (SubjectVersion("chess-value", 1),)
    registry.register("archive-value", V1)
    assert len(reader.by_id(first).subjects) == 2
    second = registry.register("chess-value", V2)
    assert reader.by_id(second) == reader.latest("chess-value")
    assert reader.subjects() == ("archive-value", "chess-value")
    assert reader.register("third-value", V2) == second
    assert registry.by_id(second).version_in("third-value") == 1


def test_what_does_not_exist_is_not_found(registry: FileRegistry) -> None:
    registry.register("chess-value", V1)
    asks: list[Callable[[], object]] = [
        lambda: registry.by_id(999),
        lambda: registry.by_id(0),
        lambda: registry.by_id(-1),
        lambda: registry.text(999),
        lambda: registry.latest("go-value"),
        lambda: registry.version("chess-value", 2),
        lambda: registry.version("go-value", 1),
        lambda: registry.delete_subject("go-value"),
        lambda: registry.delete_version("chess-value", 7),
    ]
    for ask in asks:
        with pytest.raises(SchemaNotFoundError) as caught:
            ask()
        assert caught.value.code is ErrorCode.SCHEMA_NOT_FOUND
    assert registry.versions("go-value") == ()


def test_a_schema_that_appears_after_it_was_missed_is_found(registry: FileRegistry) -> None:
    with pytest.raises(SchemaNotFoundError):
        registry.by_id(1)
    assert registry.by_id(registry.register("chess-value", V1)).id == 1


def test_a_text_that_does_not_compile_leaves_nothing_behind(registry: FileRegistry) -> None:
    with pytest.raises(InvalidSchemaError):
        registry.register("chess-value", "massage")
    assert registry.subjects() == ()
    assert registry.register("chess-value", V1) == 1


def test_an_incompatible_version_leaves_nothing_behind(registry: FileRegistry) -> None:
    registry.register("chess-value", V1)
    with pytest.raises(IncompatibleSchemaError) as caught:
        registry.register("chess-value", BROKEN)
    assert caught.value.code is ErrorCode.SCHEMA_INCOMPATIBLE
    assert caught.value.evidence and caught.value.next_step
    assert registry.versions("chess-value") == (1,)
    assert registry.register("other-value", BROKEN) == 2


def test_check_says_what_register_would(registry: FileRegistry) -> None:
    assert registry.check("chess-value", V1) == []
    registry.register("chess-value", V1)
    assert registry.check("chess-value", V2) == []
    assert registry.check("chess-value", BROKEN)
    with pytest.raises(InvalidSchemaError):
        registry.check("chess-value", "massage")
    assert registry.versions("chess-value") == (1,)


def test_levels_per_subject_and_for_all(
    make: Callable[[], FileRegistry], registry: FileRegistry
) -> None:
    registry.set_compatibility(None, None)
    assert registry.compatibility() is Level.BACKWARD
    registry.set_compatibility(None, "full")
    registry.set_compatibility("chess-value", Level.NONE)
    assert make().compatibility() is Level.FULL
    assert make().compatibility("chess-value") is Level.NONE
    assert make().compatibility("go-value") is Level.FULL
    registry.register("chess-value", V1)
    registry.register("chess-value", BROKEN)
    registry.set_compatibility("chess-value", None)
    assert registry.check("chess-value", V1)
    with pytest.raises(ConfigError):
        registry.set_compatibility(None, "sideways")
    assert registry.subjects() == ("chess-value",)


def test_a_transitive_level_looks_at_every_version(registry: FileRegistry) -> None:
    for text in (V1, PROTO3 + "package game; message Chess {}"):
        registry.register("chess-value", text)
    assert registry.check("chess-value", BROKEN) == []
    registry.set_compatibility("chess-value", Level.BACKWARD_TRANSITIVE)
    assert registry.check("chess-value", BROKEN)


def test_a_deleted_version_stays_readable_by_id(registry: FileRegistry) -> None:
    first, second = registry.register("chess-value", V1), registry.register("chess-value", V2)
    registry.delete_version("chess-value", 2)
    assert registry.versions("chess-value") == (1,)
    assert registry.latest("chess-value").id == first
    assert registry.by_id(second).subjects == (SubjectVersion("chess-value", 2),)
    with pytest.raises(SchemaNotFoundError):
        registry.version("chess-value", 2)


def test_a_version_number_is_never_used_again(registry: FileRegistry) -> None:
    registry.register("chess-value", V1)
    second = registry.register("chess-value", V2)
    registry.delete_version("chess-value", 2)
    assert registry.register("chess-value", V2) == second
    assert registry.versions("chess-value") == (1, 3)
    assert registry.by_id(second).version_in("chess-value") == 3


def test_a_deleted_subject_begins_anew_but_keeps_counting(registry: FileRegistry) -> None:
    first = registry.register("chess-value", V1)
    registry.register("chess-value", V2)
    registry.set_compatibility("chess-value", Level.FULL)
    assert registry.delete_subject("chess-value") == (1, 2)
    assert registry.subjects() == ()
    assert registry.versions("chess-value") == ()
    assert registry.compatibility("chess-value") is Level.BACKWARD
    assert registry.by_id(first).message == "game.Chess"
    registry.register("chess-value", BROKEN)
    assert registry.versions("chess-value") == (3,)


def test_references_are_compiled_in(registry: FileRegistry) -> None:
    registry.register("player", PROTO3 + "message Player { string name = 1; }")
    text = PROTO3 + 'import "common/player.proto"; message Match { Player white = 1; }'
    reference = {"name": "common/player.proto", "subject": "player", "version": 1}
    schema_id = registry.register("match-value", text, references=[reference])
    assert registry.by_id(schema_id).messages == ("Match",)
    assert registry.register("match-value", text, references=[reference]) == schema_id
    assert registry.check("match-value", text, [reference]) == []
    with pytest.raises(InvalidSchemaError):
        registry.register("match-value", text)


def test_references_form_diamonds(registry: FileRegistry) -> None:
    registry.register("base", PROTO3 + "message Base {}")
    base = Reference("base.proto", "base", 1)
    for side in ("Left", "Right"):
        text = PROTO3 + f'import "base.proto"; message {side} {{ Base b = 1; }}'
        registry.register(side, text, references=[base])
    top = PROTO3 + 'import "l.proto"; import "r.proto"; message Top { Left l = 1; Right r = 2; }'
    sides = [Reference("l.proto", "Left", 1), Reference("r.proto", "Right", 1)]
    assert registry.by_id(registry.register("top", top, references=sides)).message == "Top"


def test_a_reference_to_the_latest_is_pinned(registry: FileRegistry) -> None:
    registry.register("player", PROTO3 + "message Player { string name = 1; }")
    text = PROTO3 + 'import "p.proto"; message Match { Player white = 1; }'
    latest = Reference("p.proto", "player", -1)
    first = registry.register("match-value", text, references=[latest])
    before = registry.by_id(first).body
    registry.register("player", PROTO3 + "message Player { string name = 1; int32 age = 2; }")
    assert registry.by_id(first).body == before
    second = registry.register("match-value", text, references=[latest])
    assert second != first
    assert registry.by_id(second).body != before


def test_a_deleted_reference_still_resolves(
    make: Callable[[], FileRegistry], registry: FileRegistry
) -> None:
    registry.register("player", PROTO3 + "message Player {}")
    text = PROTO3 + 'import "p.proto"; message Match { Player white = 1; }'
    reference = Reference("p.proto", "player", 1)
    schema_id = registry.register("match-value", text, references=[reference])
    registry.delete_subject("player")
    assert make().by_id(schema_id).message == "Match"
    with pytest.raises(InvalidSchemaError):
        registry.register("other-value", text, references=[reference])


@pytest.mark.parametrize(
    "reference",
    [
        {"name": "p.proto", "subject": "nobody", "version": 1},
        {"name": "p.proto", "subject": "nobody", "version": -1},
        {"name": "p.proto", "subject": "player", "version": 2},
        {"name": "../../etc/passwd", "subject": "player", "version": 1},
        {"name": "p.proto", "subject": "player"},
        {"name": "p.proto", "subject": "player", "version": "one"},
        {"name": None, "subject": "player", "version": 1},
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(
    registry: FileRegistry, reference: dict[str, object]
) -> None:
    registry.register("player", PROTO3 + "message Player {}")
    with pytest.raises(InvalidSchemaError):
        registry.register("match-value", message(1), references=[reference])
    assert registry.subjects() == ("player",)


def test_a_schema_cannot_import_itself_through_references(registry: FileRegistry) -> None:
    registry.register("a", PROTO3 + "message A {}")
    registry.register(
        "b",
        PROTO3 + 'import "a.proto"; message B { A a = 1; }',
        references=[Reference("a.proto", "a", 1)],
    )
    # version 2 of a imports b, which imports "a.proto": version 1 of a is what b was written with
    circular = PROTO3 + 'import "b.proto"; message A { B b = 1; }'
    with pytest.raises(InvalidSchemaError):
        registry.register("a", circular, references=[Reference("b.proto", "b", 1)])


@pytest.mark.parametrize(("format", "text"), [(Format.AVRO, "{}"), (Format.JSON, "[]")])
def test_texts_that_cannot_be_compiled_are_refused(
    registry: FileRegistry, format: Format, text: str
) -> None:
    with pytest.raises(InvalidSchemaError):
        registry.register("chess-value", text, format=format)


def test_a_subject_needs_a_name(registry: FileRegistry) -> None:
    with pytest.raises(InvalidSchemaError):
        registry.register("", V1)
    assert registry.versions("") == ()
    with pytest.raises(SchemaNotFoundError):
        registry.latest("")


def test_hostile_subjects_are_only_names(
    make: Callable[[], FileRegistry], registry: FileRegistry, tmp_path: Path
) -> None:
    for number, subject in enumerate(HOSTILE):
        registry.register(subject, message(number))
        registry.set_compatibility(subject, Level.NONE)
    reader = make()
    assert reader.subjects() == tuple(sorted(HOSTILE))
    for number, subject in enumerate(HOSTILE):
        assert reader.latest(subject).messages == (f"M{number}",)
        assert reader.by_id(number + 1).subjects == (SubjectVersion(subject, 1),)
        assert reader.compatibility(subject) is Level.NONE
    assert {path.name for path in tmp_path.iterdir()} <= {"schemas"}


def test_names_that_differ_in_case_or_separators_stay_apart(registry: FileRegistry) -> None:
    names = ["Chess", "chess", "CHESS", "a.b", "a_b", "a-b", "a b", "a/b", "ä", "a\u0308"]
    for number, subject in enumerate(names):
        registry.register(subject, message(number))
    for number, subject in enumerate(names):
        assert registry.latest(subject).messages == (f"M{number}",)
    assert len(registry.subjects()) == len(names)


def test_errors_about_hostile_subjects_are_printable(registry: FileRegistry) -> None:
    for subject in HOSTILE:
        with pytest.raises(SchemaNotFoundError) as caught:
            registry.latest(subject)
        assert all(c.isprintable() for c in str(caught.value).replace("\n", ""))
        assert len(str(caught.value)) < 1000


def test_threads_share_ids(registry: FileRegistry) -> None:
    jobs = [(f"s{thread}", message(number)) for thread in range(4) for number in range(5)]
    registry.set_compatibility(None, Level.NONE)
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda job: registry.register(*job), jobs))
    assert sorted(set(ids)) == [1, 2, 3, 4, 5]
    for (_, text), schema_id in zip(jobs, ids, strict=True):
        assert registry.text(schema_id) == text
    assert all(registry.versions(f"s{thread}") == (1, 2, 3, 4, 5) for thread in range(4))


def test_a_thousand_subjects(registry: FileRegistry) -> None:
    # few texts: this is about subjects, and compiling is another test's subject
    for number in range(1000):
        registry.register(f"type-{number}-value", message(number % 10))
    assert len(registry.subjects()) == 1000
    assert len(registry.by_id(1).subjects) == 100
    assert registry.latest("type-999-value").messages == ("M9",)


COMMENTS = st.text(max_size=60).map(lambda text: text.replace("*/", ""))
SUBJECTS = st.text(min_size=1, max_size=40)


@given(st.lists(st.tuples(SUBJECTS, COMMENTS), min_size=1, max_size=4))
def test_register_then_by_id_is_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[str, str]]
) -> None:
    registry = FileRegistry(tmp_path_factory.mktemp("round") / "schemas", durable=False)
    expected: dict[int, str] = {}
    for number, (subject, comment) in enumerate(given):
        text = f"{PROTO3} message M{number} {{}} /* {comment} */"
        registry.set_compatibility(subject, Level.NONE)
        try:
            schema_id = registry.register(subject, text)
        except InvalidSchemaError:
            # some control characters are not allowed even in comments
            continue
        expected[schema_id] = text
        assert registry.by_id(schema_id).version_in(subject) is not None
        assert registry.register(subject, text) == schema_id
    for schema_id, text in expected.items():
        assert registry.text(schema_id) == text
        assert registry.by_id(schema_id).id == schema_id
