"""Tables with a key of shaped records: the rows of a plain reference, however records come."""

from __future__ import annotations

import hmac
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.file.document import PipelineFileError
from distributary.config.load import load_text
from tests.stage.keyed import PIPELINE, KeyedStream, Sent

SHAPE: list[dict[str, Any]] = [
    {"where": "kind <> 'test'", "explode": "items"},
    {
        "where": "items IS NOT NULL AND items->>'sku' <> 'none'",
        "set": {"sku": "items->>'sku'", "n": "CAST(items->>'n' AS INT)"},
        "mask": {"id": "token"},
        "keep": ["id", "sku", "n", "at"],
        "rename": {"id": "player"},
    },
]
KEYS = '{key: [player, sku], order: [at], delete_when: "n = 0", history: true}'
SECRET = "a key that nobody has"
EXTRA = f"masking: {{key: {SECRET}}}\nshape: {json.dumps(SHAPE)}"


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Sent], list[list[Sent]]]:
    """A stream, and the batches that bring it: cut anywhere, shuffled, with repeats."""
    items = st.fixed_dictionaries(
        {"sku": st.sampled_from(["a", "b", "none"]), "n": st.integers(0, 3).map(str)}
    )
    values = st.fixed_dictionaries(
        {
            "id": st.integers(0, 2),
            "kind": st.sampled_from(["sale", "sale", "test"]),
            "at": st.integers(0, 3),
            "items": st.lists(items, max_size=3),
        }
    )
    sent = [
        Sent(0, n, value) for n, value in enumerate(draw(st.lists(values, min_size=1, max_size=8)))
    ]
    again = draw(st.lists(st.sampled_from(sent), max_size=4))
    batches: list[list[Sent]] = [[]]
    for record in draw(st.permutations([*sent, *again])):
        if record in batches[-1] or (batches[-1] and draw(st.booleans())):
            batches.append([])
        batches[-1].append(record)
    return sent, batches


def expected(sent: list[Sent]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for one in sorted(sent, key=lambda each: (each.value["at"], each.offset)):
        if one.value["kind"] == "test":
            continue
        player = hmac.digest(SECRET.encode(), str(one.value["id"]).encode(), "sha256").hex()
        for item in one.value["items"]:
            if item["sku"] != "none":
                key = player, item["sku"]
                rows[key] = dict(zip(("player", "sku"), key, strict=True))
                rows[key] |= {"n": int(item["n"]), "at": one.value["at"]}
    return [row for _, row in sorted(rows.items()) if row["n"]]


@given(deliveries())
@settings(deadline=None, max_examples=8)
def test_a_row_is_the_newest_shaped_record(delivered: tuple[list[Sent], list[list[Sent]]]) -> None:
    sent, batches = delivered
    with tempfile.TemporaryDirectory() as folder:
        stream = KeyedStream(Path(folder), KEYS, extra=EXTRA, secret=SECRET)
        for batch in batches:
            staged = stream.bring(*batch)
            assert not staged.dead
        found = sorted(stream.rows(), key=lambda row: (row["player"], row["sku"]))
        assert found == expected(sent)
        shaped = [
            (one.offset, item["sku"])
            for one in sent
            for item in one.value["items"]
            if one.value["kind"] != "test" and item["sku"] != "none"
        ]
        if shaped:
            # each row is in the log once, and what is filtered is not
            log = stream.table("silver_orders_log").select(["_offset", "sku"]).to_pylist()
            assert sorted((row["_offset"], row["sku"]) for row in log) == sorted(shaped)


@pytest.mark.parametrize(
    ("shape", "path"),
    [
        ({"set": {"ID": "1"}}, "shape[0].set"),
        ({"mask": {"i*": "redact"}}, "shape[0].mask"),
        ({"rename": {"x": "id"}}, "shape[0].rename"),
        ({"drop": ["id"]}, "shape[0].drop"),
        ({"explode": "id"}, "shape[0].explode"),
    ],
)
def test_a_key_by_which_messages_without_a_value_delete_is_not_changed(
    shape: dict[str, Any], path: str
) -> None:
    text = PIPELINE.format(
        payload="json, framing: none",
        registry="",
        tables="",
        keys="{key: [id], tombstones: delete}",
        lake="./lake",
        extra=f"shape: {json.dumps([shape])}",
    )
    with pytest.raises(PipelineFileError) as caught:
        load_text(text)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_a_tombstone_deletes_a_shaped_row(tmp_path: Path) -> None:
    shape = [{"set": {"double": "n * 2"}, "drop": ["n"]}]
    stream = KeyedStream(
        tmp_path, "{key: [id], tombstones: delete}", extra=f"shape: {json.dumps(shape)}"
    )
    stream.bring(Sent(0, 0, {"id": 1, "n": 1}), Sent(0, 1, {"id": 2, "n": 2}))
    stream.bring(Sent(0, 2, None, key=b"1"))
    assert stream.rows() == [{"id": 2, "double": 4}]
