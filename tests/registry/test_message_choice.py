"""Which message of a schema a payload is that does not say so itself."""

from __future__ import annotations

import pytest

from distributary.errors import ErrorCode
from distributary.model.record import Format, WriterSchema
from distributary.model.routing import Rejected
from distributary.registry.compile import compile_schema
from distributary.registry.message_choice import choose_message


def schema(text: str, format: Format = Format.PROTOBUF) -> WriterSchema:
    compiled = compile_schema(text, format=format, imports={})
    return WriterSchema(7, format, compiled.body, compiled.message, messages=compiled.messages)


def proto(*messages: str, package: str = "shop") -> WriterSchema:
    return schema(f'syntax = "proto3"; package {package}; ' + " ".join(messages))


ITEM = "message Item { string sku = 1; }"
EVENT = "message event { repeated Item items = 1; }"
OTHER = "message Other { int32 id = 1; message Inner { int32 x = 1; } }"


def refused(found: str | Rejected) -> ErrorCode:
    assert isinstance(found, Rejected)
    return found.code


def test_a_message_that_others_are_made_of_is_not_the_payload() -> None:
    assert choose_message(proto(ITEM, EVENT)) == "shop.event"
    by_map = "message event { map<string, Item> items = 1; }"
    assert choose_message(proto(ITEM, by_map)) == "shop.event"
    within = "message event { message Line { oneof o { Item item = 1; } } Line line = 1; }"
    assert choose_message(proto(ITEM, within)) == "shop.event"
    group = "message I {} message E { repeated group G = 1 { optional I i = 1; } }"
    assert choose_message(schema(group)) == "E"


def test_the_only_message_of_a_file_may_contain_itself() -> None:
    assert choose_message(proto("message Tree { repeated Tree below = 1; }")) == "shop.Tree"
    deep = "message Tree { message Leaf { Tree up = 1; } Leaf leaf = 1; }"
    assert choose_message(proto(ITEM, deep, "message T2 { Tree t = 1; Item i = 2; }")) == "shop.T2"


def test_extensions_are_fields_of_what_they_extend() -> None:
    text = """syntax = "proto2"; message Base { extensions 100 to 199; } message Part {}
    extend Base { optional Part part = 100; }"""
    assert choose_message(schema(text)) == "Base"


def test_several_messages_that_nobody_refers_to_are_candidates() -> None:
    found = choose_message(proto(ITEM, OTHER, EVENT))
    assert refused(found) is ErrorCode.AMBIGUOUS_MESSAGE
    assert isinstance(found, Rejected)
    assert "shop.Other" in found.message
    assert "shop.event" in found.message
    assert "shop.Item" not in found.message
    assert "payload.message" in found.message


def test_messages_that_refer_to_each_other_are_all_candidates() -> None:
    found = choose_message(proto("message A { B b = 1; }", "message B { A a = 1; }"))
    assert refused(found) is ErrorCode.AMBIGUOUS_MESSAGE
    assert isinstance(found, Rejected)
    assert "shop.A" in found.message
    assert "shop.B" in found.message


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("Other", "shop.Other"),
        ("shop.Other", "shop.Other"),
        ("other", "shop.Other"),
        ("Item", "shop.Item"),
        ("order_placed", "shop.OrderPlaced"),
        ("order-placed", "shop.OrderPlaced"),
        ("ORDERPLACED", "shop.OrderPlaced"),
        ("prod.orders.OrderPlaced", "shop.OrderPlaced"),
    ],
)
def test_a_message_is_found_by_the_name_of_the_type(name: str, chosen: str) -> None:
    one = proto(ITEM, OTHER, "message OrderPlaced { Item item = 1; }", EVENT)
    assert choose_message(one, names=(name,)) == chosen
    assert choose_message(one, names=("nothing", name)) == chosen


def test_a_name_that_several_messages_are_spelled_like_is_no_choice() -> None:
    one = proto("message a_b { int32 x = 1; }", "message AB { int32 x = 1; }")
    assert choose_message(one, names=("AB",)) == "shop.AB"
    assert refused(choose_message(one, names=("ab",))) is ErrorCode.AMBIGUOUS_MESSAGE


def test_a_setting_comes_first_and_needs_no_package() -> None:
    one = proto(ITEM, OTHER, EVENT)
    assert choose_message(one, wanted="Item", names=("other",)) == "shop.Item"
    assert choose_message(one, wanted="shop.Item") == "shop.Item"
    assert choose_message(one, wanted="Inner") == "shop.Other.Inner"
    assert choose_message(one, wanted="Other.Inner") == "shop.Other.Inner"
    assert refused(choose_message(one, wanted="item")) is ErrorCode.UNUSABLE_SCHEMA
    twice = proto("message A { message X {} }", "message B { message X {} }")
    assert refused(choose_message(twice, wanted="X")) is ErrorCode.AMBIGUOUS_MESSAGE
    stamped = schema('import "google/protobuf/timestamp.proto"; message M {}')
    imported = "google.protobuf.Timestamp"
    assert choose_message(stamped, wanted=imported) == imported


def test_a_message_with_the_fields_that_are_needed_comes_before_a_name() -> None:
    wrapper = "message Wrapper { string kind = 1; bytes payload = 2; }"
    one = proto(ITEM, OTHER, wrapper)
    assert choose_message(one, names=("other",), fields=("kind", "payload")) == "shop.Wrapper"
    # where no message has them, they tell nothing
    assert choose_message(one, names=("other",), fields=("nobody",)) == "shop.Other"


def test_a_file_without_messages_is_of_no_use() -> None:
    assert refused(choose_message(schema('syntax = "proto3";'))) is ErrorCode.UNUSABLE_SCHEMA


def test_formats_with_one_record_need_no_choice() -> None:
    record = '{"type": "record", "name": "R", "fields": []}'
    assert choose_message(schema(record, Format.AVRO), names=("other",)) == "R"
