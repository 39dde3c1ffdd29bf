"""Compiling `.proto` text in the process: what is accepted, what refused, what never touched."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ErrorCode, InvalidSchemaError
from distributary.model.record import Compiled
from distributary.registry.compile.protobuf_compiler import (
    CONFLUENT,
    MAX_FILES,
    MAX_TEXT,
    compile_proto,
    is_bundled,
)

PROTO3 = 'syntax = "proto3";'


def files(compiled: Compiled) -> list[FileDescriptorProto]:
    return list(FileDescriptorSet.FromString(compiled.body).file)


def names(compiled: Compiled) -> list[str]:
    return [file.name for file in files(compiled)]


def packed(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def holder(name: str, *, of: str, package: str = "", dependency: str = "") -> FileDescriptorProto:
    """A file with one message that holds another."""
    field = FieldDescriptorProto(name="held", number=1, label=1, type=11, type_name=of)
    return FileDescriptorProto(
        name="a name of the registry's own",
        package=package,
        syntax="proto3",
        dependency=[dependency] if dependency else [],
        message_type=[DescriptorProto(name=name, field=[field] if of else [])],
    )


def refused(text: str, **kwargs: object) -> InvalidSchemaError:
    with pytest.raises(InvalidSchemaError) as caught:
        compile_proto(text, **kwargs)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.SCHEMA_INVALID
    assert caught.value.where and caught.value.next_step
    return caught.value


def test_messages_are_named_in_file_order_with_their_package() -> None:
    text = (
        PROTO3
        + "package a.b; message Second { message Inner {} } enum E { X = 0; } message First {}"
    )
    compiled = compile_proto(text)
    assert compiled.messages == ("a.b.Second", "a.b.First")
    assert compiled.message == "a.b.Second"


def test_a_file_without_messages_compiles_and_names_none() -> None:
    compiled = compile_proto(PROTO3 + "enum E { X = 0; }")
    assert compiled.messages == ()
    assert compiled.message == ""


@pytest.mark.parametrize(
    "text",
    [
        PROTO3 + "message M { string a = 1; }",
        'syntax = "proto2"; message M { required string a = 1; }',
        "message M { required string a = 1; }",
        "/* a comment */ // another\nmessage M { optional string a = 1 [default = 'x']; }",
        'edition = "2023"; message M { string a = 1; }',
        "\ufeff" + PROTO3 + "message M {}",
    ],
    ids=["proto3", "proto2", "no-syntax", "comments-first", "edition", "byte-order-mark"],
)
def test_every_syntax_compiles(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert compile_proto(text).messages == ("M",)
    assert capfd.readouterr() == ("", "")


def test_a_file_without_syntax_is_proto2() -> None:
    own = files(compile_proto("message M { required int32 a = 1; }"))[-1]
    assert own.syntax in ("", "proto2")
    assert own.message_type[0].field[0].label == FieldDescriptorProto.LABEL_REQUIRED


def test_dependencies_come_first_and_once_in_a_diamond() -> None:
    compiled = compile_proto(
        PROTO3 + 'import "left.proto"; import "right.proto"; message M { L l = 1; R r = 2; }',
        imports={
            "left.proto": PROTO3 + 'import "deep/base-types.proto"; message L { B b = 1; }',
            "right.proto": PROTO3 + 'import "deep/base-types.proto"; message R { B b = 1; }',
            "deep/base-types.proto": PROTO3 + "message B {}",
            "unused.proto": "this is not even a schema",
        },
    )
    order = names(compiled)
    assert order[0] == "deep/base-types.proto"
    assert sorted(order[1:3]) == ["left.proto", "right.proto"]
    assert order[3:] == ["schema.proto"]
    pool = descriptor_pool.DescriptorPool()
    for file in files(compiled):
        pool.AddSerializedFile(file.SerializeToString())


def test_an_import_may_have_the_name_of_the_schema_itself() -> None:
    text = PROTO3 + 'import "schema.proto"; message M { Other o = 1; }'
    compiled = compile_proto(text, imports={"schema.proto": PROTO3 + "message Other {}"})
    assert compiled.messages == ("M",)
    assert len(names(compiled)) == 2


def test_well_known_and_confluent_types_need_no_reference() -> None:
    compiled = compile_proto(
        PROTO3
        + """
        import "google/protobuf/timestamp.proto";
        import "google/type/date.proto";
        import "confluent/meta.proto";
        import "confluent/type/decimal.proto";
        message M {
          google.protobuf.Timestamp at = 1;
          google.type.Date on = 2;
          confluent.type.Decimal price = 3 [(confluent.field_meta).doc = "in euro"];
        }
        """,
    )
    assert compiled.messages == ("M",)
    assert set(names(compiled)) > {"google/type/date.proto", "confluent/meta.proto"}


@pytest.mark.parametrize("name", sorted(CONFLUENT))
def test_every_bundled_file_compiles(name: str) -> None:
    assert name in names(compile_proto(f'{PROTO3} import "{name}";'))


def test_a_reference_cannot_replace_a_bundled_file() -> None:
    text = PROTO3 + 'import "google/protobuf/timestamp.proto"; message M { string a = 1; }'
    forged = PROTO3 + "package google.protobuf; message Timestamp { string gone = 1; }"
    compiled = compile_proto(text, imports={"google/protobuf/timestamp.proto": forged})
    timestamp = files(compiled)[0].message_type[0]
    assert [field.name for field in timestamp.field] == ["seconds", "nanos"]
    assert is_bundled("google/protobuf/timestamp.proto")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (PROTO3 + "\nmessage M {\n  strin a = 1;\n}", "schema.proto:3:3"),
        ("message M { strin a = 1; }", "schema.proto:1:13"),
        ("\n\nmessage M {", "schema.proto:3:12"),
        (PROTO3 + "message M { string a = 1; string b = 1; }", "schema.proto:1:"),
        (PROTO3 + "message M { Missing a = 1; }", "schema.proto:1:"),
    ],
)
def test_evidence_names_line_and_column(
    text: str, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert place in refused(text).evidence
    assert capfd.readouterr() == ("", "")


def test_evidence_names_the_file_that_is_wrong() -> None:
    text = PROTO3 + 'import "other.proto"; message M {}'
    assert "other.proto:1:" in refused(text, imports={"other.proto": PROTO3 + "massage"}).evidence


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "a/../../b.proto",
        "a//b.proto",
        "./a.proto",
        "a/./b.proto",
        "a\\b.proto",
        "C:\\a.proto",
        "a\x00.proto",
        "a\n.proto",
        "a\x1b[2J.proto",
        "",
        "/",
        "a/",
        ".hidden.proto",
        "-I.proto",
        "x" * 5000,
        "a\ud800.proto",
    ],
)
def test_names_that_are_not_plain_and_relative_are_refused(name: str) -> None:
    error = refused(PROTO3 + "message M {}", imports={name: PROTO3})
    assert all(character.isprintable() for character in error.where)


@pytest.mark.parametrize("name", ["../../../../../../etc/passwd", "/etc/passwd", "etc/passwd"])
def test_an_import_statement_reaches_no_file_of_this_machine(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.proto"
    secret.write_text(PROTO3 + "message Secret {}", encoding="utf-8")
    refused(f'{PROTO3} import "{name}"; message M {{}}')
    refused(f'{PROTO3} import "{secret}"; message M {{ Secret s = 1; }}')


def test_names_that_clash_as_file_and_folder_are_refused() -> None:
    refused(PROTO3 + "message M {}", imports={"a": PROTO3, "a/b.proto": PROTO3})


@pytest.mark.parametrize(
    "text",
    [
        "\x00",
        "\ud800",
        "message M {" * 500,
        PROTO3 + "message M { string a = 1 [(x) = " + "{a:" * 5000 + "];}",
        PROTO3 + 'option java_package = "\x1b[2J',
        "}",
        PROTO3 + 'import "schema.proto"; message M {}',
        " " * (MAX_TEXT + 1),
    ],
)
def test_hostile_text_is_refused_and_printable(text: str) -> None:
    error = refused(text)
    assert all(character.isprintable() for character in error.evidence)
    assert len(str(error)) < 2000


def test_circular_imports_are_refused() -> None:
    circle = {
        "a.proto": PROTO3 + 'import "b.proto"; message A {}',
        "b.proto": PROTO3 + 'import "a.proto"; message B {}',
    }
    refused(PROTO3 + 'import "a.proto"; message M {}', imports=circle)


def test_too_many_imports_are_refused() -> None:
    refused(PROTO3, imports={f"f{n}.proto": PROTO3 for n in range(MAX_FILES + 1)})


@given(st.text(max_size=200))
def test_any_text_either_compiles_or_is_invalid(text: str) -> None:
    try:
        assert compile_proto(text).messages == ()
    except InvalidSchemaError as error:
        assert error.evidence


def test_threads_get_their_own_answers() -> None:
    def messages(number: int) -> tuple[str, ...]:
        bad = PROTO3 + "message {"
        with pytest.raises(InvalidSchemaError):
            compile_proto(bad + " " * number)
        return compile_proto(PROTO3 + f"message M{number} {{}}").messages

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(messages, range(40))) == [(f"M{n}",) for n in range(40)]


def test_a_serialized_descriptor_is_a_schema_too() -> None:
    file = holder(
        "M", of=".google.protobuf.Timestamp", dependency="google/protobuf/timestamp.proto"
    )
    compiled = compile_proto(packed(file))
    assert compiled.messages == ("M",)
    assert names(compiled) == ["google/protobuf/timestamp.proto", "schema.proto"]


def test_serialized_descriptors_import_each_other_with_names_resolved() -> None:
    compiled = compile_proto(
        packed(holder("M", of="d.D", dependency="d.proto")),
        imports={"d.proto": packed(holder("D", of="", package="d"))},
    )
    assert names(compiled) == ["d.proto", "schema.proto"]
    assert files(compiled)[-1].message_type[0].field[0].type_name == ".d.D"


def test_text_and_serialized_descriptors_mix() -> None:
    dependency = packed(holder("D", of=".E", package="d", dependency="e.proto"))
    compiled = compile_proto(
        PROTO3 + 'import "d.proto"; import "google/type/date.proto"; message M { d.D d = 1; }',
        imports={"d.proto": dependency, "e.proto": PROTO3 + "message E {}"},
    )
    assert compiled.messages == ("M",)
    assert names(compiled)[-1] == "schema.proto"
    assert {"d.proto", "e.proto", "google/type/date.proto"} < set(names(compiled))


def test_a_mix_that_does_not_compile_says_where() -> None:
    text = PROTO3 + '\nimport "d.proto";\nmessage M { Missing m = 1; }'
    error = refused(text, imports={"d.proto": packed(holder("D", of=""))})
    assert "schema.proto:3:" in error.evidence


def test_files_from_outside_are_never_imported_as_python() -> None:
    mine = {
        "grpc_tools/__init__.py": "raise SystemExit(7)",
        "grpc_tools/protoc.py": "raise SystemExit(7)",
        "d.proto": packed(holder("D", of="")),
    }
    assert compile_proto(PROTO3 + 'import "d.proto"; message M {}', imports=mine).messages == ("M",)


@pytest.mark.parametrize(
    "file",
    [
        holder("M", of="Missing"),
        holder("M", of=".d.D", dependency="missing.proto"),
        FileDescriptorProto(message_type=[DescriptorProto(name="A"), DescriptorProto(name="A")]),
        FileDescriptorProto(message_type=[DescriptorProto(name="not a name")]),
    ],
    ids=["unknown-type", "unknown-import", "twice", "bad-name"],
)
def test_a_serialized_descriptor_that_is_not_valid_is_refused(file: FileDescriptorProto) -> None:
    refused(packed(file))


def test_serialized_descriptors_in_a_circle_are_refused() -> None:
    circle = {
        "a.proto": packed(holder("A", of="", dependency="b.proto")),
        "b.proto": packed(holder("B", of="", dependency="a.proto")),
    }
    refused(packed(holder("M", of="", dependency="a.proto")), imports=circle)


def test_a_long_chain_of_serialized_descriptors_is_no_recursion() -> None:
    chain = {
        f"f{n}.proto": packed(holder(f"M{n}", of="", dependency=f"f{n + 1}.proto"))
        for n in range(MAX_FILES - 1)
    }
    chain[f"f{MAX_FILES - 1}.proto"] = packed(holder("Last", of=""))
    compiled = compile_proto(packed(holder("M", of="", dependency="f0.proto")), imports=chain)
    assert len(names(compiled)) == MAX_FILES + 1
