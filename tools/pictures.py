"""The pictures of the README, drawn from a real run: `make pictures`.

`docs/assets/demo.svg` is what `distributary demo games` prints in a terminal, and
`docs/assets/page.png` the page over the lake that it leaves.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright
from rich.console import Console
from rich.text import Text

ASSETS = Path(__file__).resolve().parent.parent / "docs" / "assets"
_PROGRAM = Path(sys.executable).with_name("distributary")
_COLUMNS, _ROWS = 88, 60
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_PAGE: ViewportSize = {"width": 1280, "height": 680}


def main() -> None:
    """Draw both."""
    with tempfile.TemporaryDirectory() as folder:
        shown = _typed([str(_PROGRAM), "demo", "games"], folder)
        _draw_terminal("distributary demo games", shown, ASSETS / "demo.svg")
        _photograph(Path(folder) / "distributary-demo", ASSETS / "page.png")


def _typed(command: list[str], folder: str) -> str:
    """What a command leaves on the screen of a terminal that wraps at `_COLUMNS`."""
    reader, writer = pty.openpty()
    size = {"COLUMNS": str(_COLUMNS), "LINES": str(_ROWS), "TERM": "xterm-256color"}
    # as in an environment that is active: what is to be typed next has no path of this machine
    size["PATH"] = f"{_PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(  # noqa: S603
        command, stdout=writer, stderr=subprocess.DEVNULL, cwd=folder, env=os.environ | size
    ):
        os.close(writer)
        found = bytearray()
        while True:
            try:
                part = os.read(reader, 65_536)
            except OSError:
                # the last writer closes the terminal
                break
            if not part:
                break
            found += part
    os.close(reader)
    return found.decode().replace("\r\n", "\n")


def _draw_terminal(command: str, shown: str, path: Path) -> None:
    console = Console(record=True, width=_COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    console.print(Text.from_ansi(shown.strip("\n")))
    drawn = console.export_svg(title="distributary")
    # it would fetch a font from elsewhere; the reader's own is as good
    path.write_text(_FONT.sub("", drawn))


def _photograph(lake: Path, path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    command = [str(_PROGRAM), "ui", "--lake", str(lake), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page:  # noqa: S603
        try:
            address = _address(page.stdout or ())
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox"]
                )
                view = browser.new_page(viewport=_PAGE, device_scale_factor=1.5)
                view.goto(address)
                view.wait_for_load_state("load")
                view.wait_for_timeout(1500)
                view.screenshot(path=str(path))
                browser.close()
        finally:
            page.terminate()


def _address(lines: Iterable[str]) -> str:
    for line in lines:
        for word in line.split('"'):
            if word.startswith("http://"):
                return word
    raise SystemExit("the page did not say where it is")


if __name__ == "__main__":
    main()
