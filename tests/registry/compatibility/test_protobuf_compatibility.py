"""Which changes of a protobuf schema are accepted at which level."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ConfigError, ErrorCode
from distributary.model.record import Format
from distributary.registry.compatibility.levels import Level, Version, problems
from distributary.registry.compatibility.protobuf_compatibility import reused_numbers, unreadable
from distributary.registry.compile.protobuf_compiler import compile_proto


def body(text: str, syntax: str = "proto3", imports: dict[str, str] | None = None) -> bytes:
    head = "" if "syntax" in text else f'syntax = "{syntax}"; '
    return compile_proto(head + text, imports=imports or {}).body


def judged(old: str, new: str, syntax: str = "proto3") -> list[str]:
    """Why data of the old cannot be read with the new."""
    return unreadable(body(old, syntax), body(new, syntax))


NUMBERS = ["int32", "int64", "uint32", "uint64", "bool", "E"]
SCALARS = [
    *(NUMBERS, ["sint32", "sint64"], ["fixed32", "sfixed32"], ["fixed64", "sfixed64"]),
    *(["string", "bytes"], ["float"], ["double"]),
]
GROUP_OF = {name: number for number, group in enumerate(SCALARS) for name in group}


@pytest.mark.parametrize("new", sorted(GROUP_OF))
@pytest.mark.parametrize("old", sorted(GROUP_OF))
def test_a_type_may_change_within_its_group_on_the_wire(old: str, new: str) -> None:
    shape = "enum E {{ X = 0; }} message M {{ {} a = 1; }}"
    compatible = GROUP_OF[old] == GROUP_OF[new]
    assert (judged(shape.format(old), shape.format(new)) == []) is compatible


ACCEPTED = {
    "field-added": ("message M { string a = 1; }", "message M { string a = 1; int32 b = 2; }"),
    "field-removed": ("message M { string a = 1; int32 b = 2; }", "message M { string a = 1; }"),
    "field-renamed": ("message M { string a = 1; }", "message M { string b = 1; }"),
    "message-added": ("message M {}", "message M {} message N {}"),
    "messages-reordered": ("message M {} message N {}", "message N {} message M {}"),
    "enum-changed": (
        "enum E { X = 0; Y = 1; } message M { E e = 1; }",
        "enum E { X = 0; Z = 2; } message M { E e = 1; }",
    ),
    "enum-removed": ("enum E { X = 0; } message M { E e = 1; }", "message M { int32 e = 1; }"),
    "text-becomes-many": ("message M { string a = 1; }", "message M { repeated string a = 1; }"),
    "message-becomes-many": (
        "message N {} message M { N n = 1; }",
        "message N {} message M { repeated N n = 1; }",
    ),
    "optional-said-aloud": ("message M { int32 a = 1; }", "message M { optional int32 a = 1; }"),
    "one-field-into-new-oneof": (
        "message M { string a = 1; string b = 2; }",
        "message M { oneof o { string a = 1; } string b = 2; }",
    ),
    "oneof-grows": (
        "message M { oneof o { string a = 1; } }",
        "message M { oneof o { string a = 1; int32 b = 2; } }",
    ),
    "oneof-renamed": (
        "message M { oneof o { string a = 1; int32 b = 2; } }",
        "message M { oneof p { string a = 1; int32 b = 2; } }",
    ),
    "oneof-dissolved": (
        "message M { oneof o { string a = 1; int32 b = 2; } }",
        "message M { string a = 1; int32 b = 2; }",
    ),
    "oneof-gone-whole": (
        "message M { oneof o { string a = 1; int32 b = 2; } string c = 3; }",
        "message M { string c = 3; }",
    ),
    "map-unchanged": (
        "message M { map<string, int32> m = 1; }",
        "message M { map<string, int64> m = 1; }",
    ),
    "optional-removed": (
        "message M { optional string a = 1; optional string b = 2; }",
        "message M { optional string a = 1; }",
    ),
    "recursive": (
        "message M { M m = 1; repeated M n = 2; }",
        "message M { M m = 1; repeated M n = 2; string a = 3; }",
    ),
    "reserved-on-removal": (
        "message M { string a = 1; int32 b = 2; }",
        'message M { string a = 1; reserved 2; reserved "b"; }',
    ),
}

REFUSED = {
    "type": ("message M { string a = 1; }", "message M { int32 a = 1; }"),
    "scalar-to-message": (
        "message N {} message M { string a = 1; }",
        "message N {} message M { N a = 1; }",
    ),
    "bytes-to-message": (
        "message N {} message M { bytes a = 1; }",
        "message N {} message M { N a = 1; }",
    ),
    "another-message": (
        "message N {} message O {} message M { N a = 1; }",
        "message N {} message O {} message M { O a = 1; }",
    ),
    "number-becomes-many": ("message M { int32 a = 1; }", "message M { repeated int32 a = 1; }"),
    "many-numbers-become-one": ("message M { repeated bool a = 1; }", "message M { bool a = 1; }"),
    "message-removed": ("message M {} message N {}", "message M {}"),
    "nested-message-removed": ("message M { message N {} }", "message M {}"),
    "package": ("package a; message M {}", "package b; message M {}"),
    "nested-type": (
        "message M { message N { string a = 1; } N n = 1; }",
        "message M { message N { int32 a = 1; } N n = 1; }",
    ),
    "deep-type": (
        "message A { B b = 1; } message B { repeated C c = 1; } message C { double d = 1; }",
        "message A { B b = 1; } message B { repeated C c = 1; } message C { string d = 1; }",
    ),
    "map-key": (
        "message M { map<string, int32> m = 1; }",
        "message M { map<int32, int32> m = 1; }",
    ),
    "map-value": (
        "message M { map<string, int32> m = 1; }",
        "message M { map<string, string> m = 1; }",
    ),
    "map-to-message": (
        "message E { string key = 1; int32 value = 2; } message M { map<string, int32> m = 1; }",
        "message E { string key = 1; int32 value = 2; } message M { repeated E m = 1; }",
    ),
    "fields-into-oneof": (
        "message M { string a = 1; string b = 2; }",
        "message M { oneof o { string a = 1; string b = 2; } }",
    ),
    "field-into-existing-oneof": (
        "message M { oneof o { string a = 1; } string b = 2; }",
        "message M { oneof o { string a = 1; string b = 2; } }",
    ),
    "oneofs-merged": (
        "message M { oneof o { string a = 1; } oneof p { string b = 2; } }",
        "message M { oneof o { string a = 1; string b = 2; } }",
    ),
    "oneof-shrinks": (
        "message M { oneof o { string a = 1; int32 b = 2; } }",
        "message M { oneof o { string a = 1; } }",
    ),
    "oneof-type": (
        "message M { oneof o { string a = 1; } }",
        "message M { oneof p { int32 a = 1; } }",
    ),
    "optionals-into-oneof": (
        "message M { optional string a = 1; optional string b = 2; }",
        "message M { oneof o { string a = 1; string b = 2; } }",
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case: str) -> None:
    assert judged(*ACCEPTED[case]) == []


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    assert judged(*REFUSED[case])


@pytest.mark.parametrize(
    "text", sorted({t for case in {**ACCEPTED, **REFUSED}.values() for t in case})
)
def test_every_schema_reads_its_own_data(text: str) -> None:
    schema = body(text)
    assert unreadable(schema, schema) == []
    assert reused_numbers(schema, schema) == []


@pytest.mark.parametrize(
    ("old", "new", "compatible"),
    [
        ("message M {}", "message M { required string a = 1; }", False),
        ("message M { required string a = 1; }", "message M {}", False),
        ("message M { optional int32 a = 1; }", "message M { required int32 a = 1; }", False),
        ("message M { required int32 a = 1; }", "message M { optional int32 a = 1; }", True),
        ("message M { optional group G = 1 {} }", "message M { optional group G = 1 {} }", True),
        (
            "message G {} message M { optional G g = 1; }",
            "message G {} message M { optional group H = 1 {} }",
            False,
        ),
    ],
)
def test_proto2_labels_and_groups(old: str, new: str, compatible: bool) -> None:
    assert (judged(old, new, "proto2") == []) is compatible


def test_required_is_seen_in_editions() -> None:
    head = 'edition = "2023"; /* no syntax */ message M { int32 a = 1'
    old = compile_proto(head + "; }").body
    new = compile_proto(head + " [features.field_presence = LEGACY_REQUIRED]; }").body
    assert unreadable(old, new)
    assert unreadable(new, old) == []


def test_imported_types_are_followed_and_their_package_does_not_matter() -> None:
    text = 'import "t.proto"; message M {{ {}.T t = 1; }}'
    old = body(
        text.format("a"), imports={"t.proto": "package a; message T { optional int32 x = 1; }"}
    )
    moved = body(
        text.format("b"), imports={"t.proto": "package b; message T { optional int64 x = 1; }"}
    )
    broken = body(
        text.format("a"), imports={"t.proto": "package a; message T { optional string x = 1; }"}
    )
    assert unreadable(old, moved) == []
    assert unreadable(old, broken)


def test_a_long_chain_of_types_is_no_recursion() -> None:
    chain = " ".join(f"message M{n} {{ M{n + 1} m = 1; }}" for n in range(1500))
    old = body(chain + " message M1500 { string a = 1; }")
    new = body(chain + " message M1500 { int32 a = 1; }")
    assert len(unreadable(old, new)) == 1


@pytest.mark.parametrize(
    ("reserved", "reused"), [("2", True), ("1 to 3", True), ("3 to max", False), ("5", False)]
)
def test_a_reserved_number_stays_reserved(reserved: str, reused: bool) -> None:
    old = body(f"message M {{ message N {{ reserved {reserved}; }} }}")
    new = body("message M { message N { string b = 2; } }")
    assert bool(reused_numbers(old, new)) is reused
    assert reused_numbers(new, old) == []


ADDED_MESSAGE = ("message M {}", "message M {} message N {}")
REMOVED_MESSAGE = ADDED_MESSAGE[::-1]
ADDED_FIELD = ("message M {}", "message M { string a = 1; }")
BROKEN = ("message M { string a = 1; }", "message M { int32 a = 1; }")


@pytest.mark.parametrize(
    ("change", "refusing"),
    [
        (ADDED_FIELD, set()),
        (ADDED_MESSAGE, {"FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"}),
        (REMOVED_MESSAGE, {"BACKWARD", "BACKWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"}),
        (BROKEN, set(Level) - {"NONE"}),
    ],
    ids=["field-added", "message-added", "message-removed", "type-changed"],
)
@pytest.mark.parametrize("level", list(Level))
def test_levels_look_in_their_direction(
    change: tuple[str, str], refusing: set[str], level: Level
) -> None:
    history = [Version(1, Format.PROTOBUF, body(change[0]))]
    found = problems(body(change[1]), format=Format.PROTOBUF, history=history, level=level)
    assert bool(found) is (level in refusing)


@pytest.mark.parametrize("level", list(Level))
def test_only_transitive_levels_look_past_the_newest_version(level: Level) -> None:
    texts = ["message M { string a = 1; }", "message M {}"]
    history = [Version(n, Format.PROTOBUF, body(t)) for n, t in enumerate(texts, 1)]
    new = body("message M { int32 a = 1; }")
    found = problems(new, format=Format.PROTOBUF, history=history, level=level)
    assert bool(found) is level.transitive


@pytest.mark.parametrize("level", [level for level in Level if level is not Level.NONE])
def test_reuse_of_a_reserved_number_is_refused_in_every_direction(level: Level) -> None:
    history = [Version(1, Format.PROTOBUF, body("message M { reserved 1; }"))]
    new = body("message M { string a = 1; }")
    assert problems(new, format=Format.PROTOBUF, history=history, level=level)
    # while reserving what goes is the right thing to do
    history = [Version(1, Format.PROTOBUF, new)]
    old = body("message M { reserved 1; }")
    assert problems(old, format=Format.PROTOBUF, history=history, level=level) == []


def test_the_first_version_is_always_compatible() -> None:
    new = body("message M {}")
    assert problems(new, format=Format.PROTOBUF, history=[], level=Level.FULL_TRANSITIVE) == []


def test_a_subject_keeps_its_format() -> None:
    history = [Version(1, Format.AVRO, b"{}")]
    new = body("message M {}")
    assert problems(new, format=Format.PROTOBUF, history=history, level=Level.BACKWARD)
    assert problems(new, format=Format.PROTOBUF, history=history, level=Level.NONE) == []


def test_level_names_in_any_case() -> None:
    assert Level.of("full_transitive") is Level.FULL_TRANSITIVE
    with pytest.raises(ConfigError) as caught:
        Level.of("sideways")
    assert caught.value.code is ErrorCode.CONFIG_INVALID


TYPES = st.sampled_from([*sorted(GROUP_OF), "M", "N", "map<string, N>"])
FIELDS = st.dictionaries(
    st.integers(min_value=1, max_value=9),
    st.tuples(TYPES, st.sampled_from(["", "repeated ", "optional "])),
    max_size=5,
)


def rendered(fields: dict[int, tuple[str, str]]) -> str:
    lines = [
        f"{'' if kind.startswith('map') else label}{kind} f{number} = {number};"
        for number, (kind, label) in fields.items()
    ]
    return f"enum E {{ X = 0; }} message N {{ string a = 1; }} message M {{ {' '.join(lines)} }}"


@given(FIELDS, FIELDS)
def test_reading_is_reflexive_and_full_is_both_directions(
    left: dict[int, tuple[str, str]], right: dict[int, tuple[str, str]]
) -> None:
    old, new = body(rendered(left)), body(rendered(right))
    assert unreadable(old, old) == []
    history = [Version(1, Format.PROTOBUF, old)]
    full = problems(new, format=Format.PROTOBUF, history=history, level=Level.FULL)
    assert len(full) == len(unreadable(old, new)) + len(unreadable(new, old))
