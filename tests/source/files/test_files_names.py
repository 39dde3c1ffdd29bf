from __future__ import annotations

from datetime import UTC, datetime

import pytest

from distributary.source.files.file_list import FileFilter, FoundFile

MINUTE = "2024/05/09/06/56"


def wanted(path: str, *, size: int = 10, format: str = "avro", **rules: object) -> bool:
    return FileFilter(format, **rules)(FoundFile(path, size, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path",
    [
        f"shop_orders/{MINUTE}/a.avro",
        f"shop_orders/{MINUTE}/a",
        f"shop_orders/{MINUTE}/a.jsonl",
        f"deeper/than/told/shop_orders/{MINUTE}/a.avro",
        f"{MINUTE}/a.avro",
        f"_private_orders/{MINUTE}/a.avro",
        f"Größe mit Raum/{MINUTE}/a b\nc.avro",
        "shop_orders/a.avro",
        "a.AVRO",
    ],
)
def test_change_files(path: str) -> None:
    assert wanted(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        f"shop_orders/{MINUTE}/",
        f"shop_orders/{MINUTE}/.a.avro",
        f"shop_orders/{MINUTE}/_SUCCESS",
        f"shop_orders/{MINUTE}/a.avsc",
        f".hidden/{MINUTE}/a.avro",
        f"_temporary/0/shop_orders/{MINUTE}/a.avro",
        f"../shop_orders/{MINUTE}/a.avro",
        f"shop_orders/{MINUTE}/../a.avro",
        "_delta_log/a.avro",
        "shop_orders/a.txt",
        "shop_orders/2024/13/09/06/56/a.txt",
        "README",
    ],
)
def test_other_files(path: str) -> None:
    assert not wanted(path)


def test_empty_files_do_not_count() -> None:
    assert not wanted(f"shop_orders/{MINUTE}/a.avro", size=0)


@pytest.mark.parametrize(
    "name",
    ["a_schema", "a_schema.json", "a.schema.json.gz", "a-schema.jsonl", "a.avsc", "a.Schema"],
)
def test_files_of_schemas_do_not_count(name: str) -> None:
    assert not wanted(f"shop_orders/{MINUTE}/{name}", format="json")
    assert wanted(f"shop_schema/{MINUTE}/a.json", format="json")


@pytest.mark.parametrize(
    ("format", "name", "expected"),
    [
        ("json", "a.jsonl.gz", True),
        ("json", "a.json", True),
        ("json", "a.avro", False),
        ("parquet", "a.parquet", True),
        ("avro", "a.parquet", False),
    ],
)
def test_outside_of_a_minute_the_suffix_decides(format: str, name: str, expected: bool) -> None:
    assert wanted(f"shop_orders/{name}", format=format) is expected


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ((), (), {"shop_orders", "shop_users", "crm_users"}),
        (("shop_*",), (), {"shop_orders", "shop_users"}),
        (("shop_*",), ("*_users",), {"shop_orders"}),
        ((), ("shop_*",), {"crm_users"}),
        (("SHOP_*",), (), set()),
        (("crm_users", "shop_?sers"), (), {"crm_users", "shop_users"}),
    ],
)
def test_lists_of_tables(
    include: tuple[str, ...], exclude: tuple[str, ...], expected: set[str]
) -> None:
    tables = ["shop_orders", "shop_users", "crm_users"]
    found = {
        table
        for table in tables
        if wanted(f"in/{table}/{MINUTE}/a", include=include, exclude=exclude)
    }
    assert found == expected
    assert wanted("shop_orders/x/a.avro", include=("shop_*",))
    assert not wanted("a.avro", include=("shop_*",))


def test_minutes_before_the_start_are_left_out() -> None:
    start = datetime(2024, 5, 9, 6, 57, tzinfo=UTC)
    assert not wanted("shop_orders/2024/05/09/06/56/a", start=start)
    assert wanted("shop_orders/2024/05/09/06/57/a", start=start)
    assert wanted("shop_orders/a.avro", start=start), "it is in no minute"
