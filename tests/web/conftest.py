"""A dashboard of its own for each test, and one browser for all of them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from distributary.web.dashboard import Dashboard, Settings, make_dashboard
from distributary.web.serve import Server, bind
from tests.waiting import eventually
from tests.web.lakes import WebLake, busy_lake, wide_lake

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
TOKEN = "a token of the tests"


@dataclass(frozen=True)
class Running:
    """A dashboard that answers."""

    url: str
    dashboard: Dashboard
    said: list[str]
    """One line for each request."""

    def client(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60, **options)

    def get(self, path: str, **options: Any) -> Any:
        with self.client() as client:
            answer = client.get(path, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()


Start = Callable[..., Running]


@contextmanager
def running(lake: Path, **settings: Any) -> Iterator[Running]:
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    said: list[str] = []
    dashboard = make_dashboard(Settings(lake=str(lake), port=port, **settings), tell=said.append)
    server = Server(dashboard)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        eventually(lambda: server.started, seconds=30)
        yield Running(f"http://127.0.0.1:{port}", dashboard, said)
    finally:
        dashboard.live.closing = True
        server.should_exit = True
        thread.join()
        dashboard.close()
        listening.close()


@pytest.fixture(autouse=True)
def own_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that a page starts leave nothing on the machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(path, token=...)`."""
    with ExitStack() as stack:
        yield lambda lake, **settings: stack.enter_context(running(lake, **settings))


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> WebLake:
    """Not to be changed: many tests look at it."""
    return busy_lake(tmp_path_factory.mktemp("busy") / "lake")


@pytest.fixture
def own(busy: WebLake, tmp_path: Path) -> Path:
    """A copy of the busy lake, to be changed."""
    return Path(shutil.copytree(busy.path, tmp_path / "lake"))


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> WebLake:
    return wide_lake(tmp_path_factory.mktemp("wide") / "lake")


@pytest.fixture(scope="module")
def page_of_busy(busy: WebLake) -> Iterator[Running]:
    with running(busy.path) as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium; a machine without one may skip these tests, CI may not."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("the tests of the dashboard need Chromium: apt-get install chromium")
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield found
        found.close()


@dataclass
class Looking:
    """A page with everything that went wrong on it."""

    page: Page
    errors: list[str]
    hosts: set[str]

    def open(self, url: str) -> None:
        self.page.goto(url)
        self.page.wait_for_selector("main :is(.page, .login, .problem)")

    def shoot(self, name: str) -> None:
        """Keep what it looks like, where somebody wants to see it: drawing takes time."""
        if os.environ.get("SCREENSHOTS"):
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    @contextmanager
    def in_the_dark(self) -> Iterator[None]:
        """As on a system whose windows are dark."""
        self.page.emulate_media(color_scheme="dark")
        try:
            yield
        finally:
            self.page.emulate_media(color_scheme="light")

    def forget(self) -> None:
        """Keep nothing of what a test has left: no cookie, no choice, no complaint."""
        # a page that could not be loaded has no storage
        self.page.evaluate("try { localStorage.clear(); sessionStorage.clear(); } catch {}")
        self.page.goto("about:blank")
        self.page.context.clear_cookies()
        self.errors.clear()
        self.hosts.clear()


Look = Callable[..., Looking]
Windows = dict[bool, list[Looking]]


@pytest.fixture(scope="session")
def windows(browser: Browser) -> Windows:
    """Those that no test is using: a new one costs more than most tests do with it."""
    return {}


@pytest.fixture
def look(browser: Browser, windows: Windows) -> Iterator[Look]:
    """`look(phone=True)`: a window that knows nothing of others."""
    used: list[tuple[bool, Looking]] = []

    def make(*, phone: bool = False) -> Looking:
        free = windows.get(phone)
        looking = free.pop() if free else new_window(browser, phone=phone)
        used.append((phone, looking))
        return looking

    yield make
    for kind, looking in used:
        looking.forget()
        windows.setdefault(kind, []).append(looking)


def new_window(browser: Browser, *, phone: bool) -> Looking:
    size = (390, 844) if phone else (1280, 800)
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="light",
    )
    looking = Looking(context.new_page(), [], set())
    page = looking.page
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: looking.errors.append(str(error)))
    page.on(
        "console",
        lambda said: looking.errors.append(said.text) if said.type == "error" else None,
    )
    page.on("request", lambda sent: looking.hosts.add(sent.url.split("/")[2]))
    return looking
