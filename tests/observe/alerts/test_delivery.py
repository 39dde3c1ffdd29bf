"""From the bus to real servers, with everything in between."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from distributary.config.alerts import AtMost
from distributary.config.pipeline_config import PipelineConfig
from distributary.errors import DistributaryError, LakeUnavailableError, OwnedError
from distributary.observe.alerts.delivery import Courier, Limit
from distributary.observe.alerts.notice import AlertState, Notice
from distributary.observe.alerts.rules import Wording
from distributary.observe.alerts.targets import DELIVERED, DeliveryOutcome, make_targets
from distributary.observe.alerts.watch import NAME, AlertMemory, Watch, attach_alerts
from distributary.observe.events import EventBus, Idle
from tests.observe.alerts.mailbox import mail_server
from tests.observe.alerts.scenes import NAME as PIPELINE
from tests.observe.alerts.scenes import failed, moment, notice, parked, pipeline, settled
from tests.registry.loopback import Asked, Says, Server, serving
from tests.waiting import eventually

PATIENCE = 30.0


def hooked(*urls: str, **alerts: Any) -> PipelineConfig:
    to = [{"type": "webhook", "url": url, "timeout": "30s"} for url in urls]
    return pipeline({"to": to, **alerts})


def states(server: Server) -> list[tuple[str, str]]:
    documents = [json.loads(asked.body) for asked in server.asked]
    return [(d["state"], d["key"]) for d in documents]


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> Any:
        return moment(self.seconds)


@contextmanager
def watching(
    config: PipelineConfig,
    folder: Path,
    *,
    clock: Callable[[], Any] | None = None,
    close_seconds: float = PATIENCE,
) -> Iterator[Watch]:
    """The same as `attach_alerts`, with pauses and ticks that a test can wait for."""
    clock = clock or Clock()
    alerts = config.alerts
    summarise = Wording(config, str).held_back
    couriers = [
        Courier(
            target,
            Limit(alerts.at_most, summarise, one_by_one=target.one_by_one),
            give_up_after=settings.give_up_after,
            clock=clock,
            longest_pause=0.02,
        )
        for target, settings in zip(make_targets(alerts), alerts.to, strict=True)
    ]
    watch = Watch(config, couriers, AlertMemory(folder), clock=clock, tick_seconds=0.02)
    watch.start()
    try:
        yield watch
    finally:
        watch.close(close_seconds)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(lambda asked: Says(200)) as server:
        yield server


def test_what_happens_on_the_bus_arrives_and_is_over(server: Server, tmp_path: Path) -> None:
    bus = EventBus()
    with attach_alerts(bus, hooked(server.url), state_folder=tmp_path, close_seconds=PATIENCE):
        bus.publish(failed())
        bus.publish(failed(name="orders"))
        bus.publish(parked("chess"))
        bus.publish(settled(parked=("chess",)))
    told = states(server)
    assert [state for state, key in told if "failure" in key] == ["raised", "resolved"]
    assert [told for told in told if "failure" not in told[1]] == [("raised", "games/parked/chess")]
    left = json.loads((tmp_path / NAME).read_text())
    assert [each["subject"] for each in left["open"]] == ["chess"]
    assert not left["targets"]["webhook-1"]["waiting"]
    bus.publish(failed(20))
    assert len(server.asked) == 3


def test_two_pipelines_on_one_bus(server: Server, tmp_path: Path) -> None:
    bus = EventBus()
    one = hooked(f"{server.url}/games")
    other = PipelineConfig.model_validate(
        pipeline(name="orders").model_dump(by_alias=True)
        | {"alerts": {"to": [{"type": "webhook", "url": f"{server.url}/orders"}]}}
    )
    with (
        attach_alerts(bus, one, state_folder=tmp_path / "a", close_seconds=PATIENCE),
        attach_alerts(bus, other, state_folder=tmp_path / "b", close_seconds=PATIENCE),
    ):
        bus.publish(failed())
        bus.publish(failed(name="orders"))
    got = {asked.path: json.loads(asked.body)["pipeline"] for asked in server.asked}
    assert got == {"/games": "games", "/orders": "orders"}


def test_without_a_target_nothing_is_started(tmp_path: Path) -> None:
    bus = EventBus()
    before = threading.active_count()
    with attach_alerts(bus, pipeline(), state_folder=tmp_path / "none") as watch:
        bus.publish(failed())
        assert watch is None
        assert threading.active_count() == before
    assert not (tmp_path / "none").exists()


def test_a_target_that_hangs_holds_up_neither_a_batch_nor_the_others(tmp_path: Path) -> None:
    bus = EventBus()
    with serving(lambda asked: Says(hang=True)) as hung, serving(lambda asked: Says(200)) as well:
        config = hooked(hung.url, well.url)
        with attach_alerts(bus, config, state_folder=tmp_path, close_seconds=0.5):
            for number in range(50):
                bus.publish(parked(f"t{number}"))
            eventually(lambda: len(well.asked) == 20, seconds=PATIENCE)
    # all were published and told elsewhere although this one has not answered once
    kept = json.loads((tmp_path / NAME).read_text())["targets"]
    assert len(kept["webhook-1"]["waiting"]) + len(kept["webhook-1"]["under_way"]) == 50


def test_what_hung_is_told_by_the_next_process(tmp_path: Path) -> None:
    answer = [Says(hang=True)]
    with serving(lambda asked: answer[0]) as server:
        config = hooked(server.url)
        with watching(config, tmp_path, close_seconds=1.0) as first:
            first.hear(failed())
            eventually(lambda: len(server.asked) >= 1, seconds=PATIENCE)
        answer[0] = Says(200)
        before = len(server.asked)
        with watching(config, tmp_path) as second:
            assert [each["code"] for each in second._rules.memory()["open"]] == [
                "SOURCE_UNAVAILABLE"
            ]
            second.hear(failed())
            second.hear(settled())
        assert states(server)[before:] == [
            ("raised", "games/failure/SOURCE_UNAVAILABLE"),
            ("resolved", "games/failure/SOURCE_UNAVAILABLE"),
        ]
        keys = {asked.headers["idempotency-key"] for asked in server.asked}
        assert len(keys) == 2


def test_a_restart_neither_repeats_an_open_alert_nor_forgets_to_resolve_it(
    server: Server, tmp_path: Path
) -> None:
    config = hooked(server.url)
    with watching(config, tmp_path) as first:
        first.hear(parked("chess"))
    with watching(config, tmp_path) as second:
        second.hear(parked("chess", 5))
    with watching(config, tmp_path) as third:
        third.hear(settled(9))
    assert states(server) == [("raised", "games/parked/chess"), ("resolved", "games/parked/chess")]


def test_what_is_told_is_written_down_before(tmp_path: Path) -> None:
    known: list[bytes] = []

    def script(asked: Asked) -> Says:
        # a process that is killed right now leaves this
        known.append((tmp_path / NAME).read_bytes())
        return Says(200)

    with serving(script) as server, watching(hooked(server.url), tmp_path) as watch:
        watch.hear(parked("chess"))
        eventually(lambda: len(known) == 1, seconds=PATIENCE)
    left = json.loads(known[0])
    assert [each["subject"] for each in left["open"]] == ["chess"]


@pytest.mark.parametrize("bad", [Says(500), Says(429, headers={"retry-after": "0"}), Says(503)])
def test_a_target_that_fails_for_a_while_is_tried_again(bad: Says, tmp_path: Path) -> None:
    count = [0]

    def script(asked: Asked) -> Says:
        count[0] += 1
        return bad if count[0] <= 3 else Says(200)

    with serving(script) as server, watching(hooked(server.url), tmp_path) as watch:
        watch.hear(failed())
        eventually(lambda: len(server.asked) == 4, seconds=PATIENCE)
    keys = {asked.headers["idempotency-key"] for asked in server.asked}
    bodies = {asked.body for asked in server.asked}
    assert (len(server.asked), len(keys), len(bodies)) == (4, 1, 1)


def test_what_is_refused_is_given_up_and_said_so_without_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(lambda asked: Says(403, body=b"canary-answer")) as server:
        with watching(hooked(f"{server.url}/canary-path"), tmp_path) as watch:
            watch.hear(failed())
            eventually(lambda: "given up" in caplog.text, seconds=PATIENCE)
        assert len(server.asked) == 1
    assert "given up: answered 403" in caplog.text
    assert "canary" not in caplog.text
    assert "canary" not in (tmp_path / NAME).read_text()


def test_what_is_too_old_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(lambda asked: Says(500)) as server:
        config = pipeline({"to": [{"type": "webhook", "url": server.url, "give_up_after": "1s"}]})
        clock = Clock()
        with watching(config, tmp_path, clock=clock) as watch:
            watch.hear(failed())
            eventually(lambda: len(server.asked) > 1, seconds=PATIENCE)
            clock.seconds = 10
            eventually(lambda: "given up" in caplog.text, seconds=PATIENCE)


def test_time_alone_raises_an_alert(server: Server, tmp_path: Path) -> None:
    clock = Clock()
    config = hooked(server.url, on={"freshness": "15m"})
    with watching(config, tmp_path, clock=clock) as watch:
        watch.hear(settled(0))
        clock.seconds = 901
        eventually(lambda: len(server.asked) == 1, seconds=PATIENCE)
        clock.seconds = 950
        watch.hear(Idle(pipeline=PIPELINE, at=moment(950)))
        eventually(lambda: len(server.asked) == 2, seconds=PATIENCE)
    assert states(server) == [("raised", "games/freshness"), ("resolved", "games/freshness")]


def test_a_flood_becomes_a_few_messages(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    full: list[Limit] = []
    hold = Limit.hold

    def noticed(limit: Limit) -> None:
        hold(limit)
        full.append(limit)

    monkeypatch.setattr(Limit, "hold", noticed)
    config = hooked(server.url, at_most={"messages": 5, "within": "10m"})
    with watching(config, tmp_path, clock=clock) as watch:
        for number in range(1000):
            watch.hear(parked(f"t{number}"))
        # time passes only after it was found that there is no room for the others
        eventually(lambda: bool(full) and len(full[0].waiting) == 995, seconds=PATIENCE)
        assert len(server.asked) == 5
        clock.seconds = 601
        eventually(lambda: len(server.asked) == 6, seconds=PATIENCE)
    assert states(server)[5] == ("info", "games/held_back")
    assert json.loads(server.asked[5].body)["what"] == "995 messages were held back"


@pytest.mark.parametrize(
    ("error", "keys"),
    [
        (LakeUnavailableError("no lake"), ["games/failure/failed"]),
        (RuntimeError("canary"), ["games/failure/failed"]),
        (OwnedError("another one runs"), []),
        (KeyboardInterrupt(), []),
    ],
)
def test_an_error_that_no_event_told_is_told_at_the_end(
    error: BaseException, keys: list[str], server: Server, tmp_path: Path
) -> None:
    with (
        pytest.raises(type(error)),
        attach_alerts(
            EventBus(), hooked(server.url), state_folder=tmp_path, close_seconds=PATIENCE
        ),
    ):
        raise error
    assert [key for _, key in states(server)] == keys
    assert b"canary" not in b"".join(asked.body for asked in server.asked)


def test_an_error_that_an_event_told_is_not_told_again(server: Server, tmp_path: Path) -> None:
    bus = EventBus()
    error = DistributaryError("gone")
    with (
        pytest.raises(DistributaryError),
        attach_alerts(bus, hooked(server.url), state_folder=tmp_path, close_seconds=PATIENCE),
    ):
        bus.publish(failed(retry_in=None, error=error))
        raise error
    assert states(server) == [("raised", "games/failure/failed")]


def test_a_secret_of_the_settings_is_hidden_in_what_is_told(server: Server, tmp_path: Path) -> None:
    bus = EventBus()
    with attach_alerts(
        bus, hooked(f"{server.url}/canary"), state_folder=tmp_path, close_seconds=PATIENCE
    ):
        said = DistributaryError("no", evidence=f"asked {server.url}/canary in vain")
        bus.publish(failed(error=said))
    (asked,) = server.asked
    assert b"asked *** in vain" in asked.body
    assert b"canary" not in asked.body


def test_a_folder_that_cannot_be_written_costs_the_memory_only(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with watching(hooked(server.url), tmp_path / "file") as watch:
        watch.hear(failed())
        watch.hear(settled())
    assert len(server.asked) == 2
    assert len([r for r in caplog.records if "cannot be written" in r.getMessage()]) <= 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 99}', b"\xff\x00", b"[" * 9999])
def test_a_memory_that_is_damaged_is_begun_anew(
    content: bytes, server: Server, tmp_path: Path
) -> None:
    (tmp_path / NAME).write_bytes(content)
    with watching(hooked(server.url), tmp_path) as watch:
        watch.hear(failed())
    assert len(server.asked) == 1
    assert json.loads((tmp_path / NAME).read_text())["format"] == 1


def test_the_memory_is_left_alone_when_nothing_changes(tmp_path: Path) -> None:
    memory = AlertMemory(tmp_path)
    memory.write({"open": []})
    before = (tmp_path / NAME).stat().st_ino
    memory.write({"open": []})
    assert (tmp_path / NAME).stat().st_ino == before
    memory.write({"open": [1]})
    assert memory.read()["open"] == [1]


def test_everything_at_once(tmp_path: Path) -> None:
    with serving(lambda asked: Says(202)) as server, mail_server() as box:
        config = pipeline(
            {
                "dashboard_url": "http://127.0.0.1:8500",
                "to": [
                    {"type": "webhook", "url": f"{server.url}/hook"},
                    {"type": "slack", "url": f"{server.url}/slack"},
                    {"type": "pagerduty", "routing_key": "k" * 32, "url": server.url},
                    {
                        "type": "email",
                        "host": "127.0.0.1",
                        "port": box.port,
                        "tls": "none",
                        "from": "d@x.example",
                        "to": "a@x.example",
                    },
                ],
            }
        )
        bus = EventBus()
        with attach_alerts(bus, config, state_folder=tmp_path, close_seconds=PATIENCE):
            bus.publish(parked("chess"))
            bus.publish(settled())
    paths = sorted(asked.path for asked in server.asked)
    assert paths == ["/hook", "/hook", "/slack", "/slack", "/v2/enqueue", "/v2/enqueue"]
    assert [mail["Subject"].split("]")[0] for mail in box.mails] == ["[error", "[resolved"]
    assert "http://127.0.0.1:8500/tables/chess" in box.mails[0].get_content()


class OutOfReach:
    """A target that is not there until it is back."""

    name = "far"
    one_by_one = False

    def __init__(self) -> None:
        self.back = threading.Event()
        self.tried = 0
        self.sent: list[Notice] = []

    def send(self, one: Notice) -> DeliveryOutcome:
        self.tried += 1
        if not self.back.is_set():
            return DeliveryOutcome(False, "away", again=True)
        self.sent.append(one)
        return DELIVERED

    def close(self) -> None:
        pass


def test_what_begins_and_ends_while_a_target_is_out_of_reach_is_never_told() -> None:
    target, config = OutOfReach(), pipeline()
    limit = Limit(AtMost(), Wording(config, str).held_back)
    courier = Courier(
        target, limit, give_up_after=timedelta(days=1), clock=Clock(), longest_pause=0.02
    )
    courier.start()
    courier.offer(notice("a"))
    courier.poke()
    eventually(lambda: target.tried > 1, seconds=PATIENCE)
    courier.offer(notice("b"))
    courier.offer(notice("b").resolved(moment(1)))
    courier.offer(notice("a").resolved(moment(2)))
    target.back.set()
    courier.finish()
    courier.join(time.monotonic() + PATIENCE)
    assert [(n.subject, n.state) for n in target.sent] == [
        ("a", AlertState.RAISED),
        ("a", AlertState.RESOLVED),
    ]
