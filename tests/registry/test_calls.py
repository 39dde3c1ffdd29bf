"""Questions to a registry are counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from distributary.errors import RegistryUnavailableError, SchemaNotFoundError
from distributary.registry.base import RegistryCalls, endpoint
from tests.registry.loopback import Says, by_path, no, registry, serving


def counts(calls: RegistryCalls) -> dict[tuple[str, str], int]:
    return {kind: count for kind, (count, _) in calls.take().items()}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/schemas/ids/7", "schemas/ids"),
        ("/schemas/ids/7/versions", "schemas/ids"),
        ("/schemas/guids/0", "schemas/guids"),
        ("/subjects", "subjects"),
        ("/subjects/a%2Fb/versions/latest", "subjects"),
        ("/config", "config"),
        ("/config/chess-value", "config"),
        ("/compatibility/subjects/x/versions", "compatibility"),
        ("/schemas/ids-of-mine", "other"),
        ("/", "other"),
        ("", "other"),
    ],
)
def test_names_and_ids_are_no_part_of_the_kind(path: str, kind: str) -> None:
    assert endpoint(path) == kind


def test_each_question_counts_by_endpoint_and_outcome() -> None:
    calls = RegistryCalls()
    script = by_path({"GET /subjects": ["chess-value"], "GET /schemas/ids/8": no(404, 40403)})
    with serving(script) as server, registry(server.url) as asking:
        asking.count_in(calls)
        asking.subjects()
        with pytest.raises(SchemaNotFoundError):
            asking.by_id(8)
        subjects = [path for path in server.paths if path.startswith("GET /subjects")]
    found = counts(calls)
    # a listing may be asked for page by page
    assert found["subjects", "ok"] >= len(subjects) > 0
    assert found["schemas/ids", "refused"] == 1
    assert not calls.take()


def test_every_attempt_counts() -> None:
    calls = RegistryCalls()
    with serving(lambda asked: Says(503)) as server, registry(server.url, attempts=3) as asking:
        asking.count_in(calls)
        with pytest.raises(RegistryUnavailableError):
            asking.subjects()
    with registry("http://127.0.0.1:9", attempts=2) as asking:
        asking.count_in(calls)
        with pytest.raises(RegistryUnavailableError):
            asking.subjects()
    taken = calls.take()
    assert taken["subjects", "busy"][0] == 3
    assert taken["subjects", "silent"][0] == 2
    assert all(seconds > 0 for _, seconds in taken.values())


def test_no_question_is_lost_between_threads() -> None:
    calls = RegistryCalls()
    taken: list[int] = []

    def ask(number: int) -> None:
        calls.add("/subjects", status=200, seconds=0.0)
        if number % 7 == 0:
            taken.append(sum(counts(calls).values()))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(2000)))
    assert sum(taken) + sum(counts(calls).values()) == 2000
