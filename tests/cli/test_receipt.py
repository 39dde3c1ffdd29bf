import hashlib
import re
from pathlib import Path

from tests.cli.conftest import Cli
from tests.cli.lake import HOSTILE, make_lake


def test_a_receipt_is_left_and_named(own_folder: Path, cli: Cli) -> None:
    make_lake(own_folder / "lake", parked=["silver_0"])
    page = own_folder / "out.html"
    said = cli("status", "--receipt", "out.html")
    assert said.code == 0, said.err
    assert f"receipt {page}" in said.out
    first = page.read_text()
    document = cli("status", "--receipt", page, "--json").json
    assert (document["version"], document["receipt"]) == (1, str(page))
    line = re.search(r'id="facts">(.*)</script>', page.read_text())
    assert line is not None
    assert hashlib.sha256(line[1].encode()).hexdigest() == document["receipt_sha256"]
    # written twice, the lake being the same
    assert document["receipt_sha256"] in first
    assert "silver_0" in first and HOSTILE not in first


def test_a_file_that_is_no_receipt_stays(own_folder: Path, cli: Cli) -> None:
    make_lake(own_folder / "lake")
    mine = own_folder / "games.yaml"
    mine.write_text("name: games")
    refused = cli("status", "--receipt", mine, "--json")
    assert (refused.code, refused.json["error"]["code"]) == (2, "CONFIRMATION_NEEDED")
    assert mine.read_text() == "name: games"
    missing = cli("status", "--lake", own_folder / "none", "--receipt", "new.html")
    assert missing.err.startswith("NOT_FOUND") and not Path("new.html").exists()
