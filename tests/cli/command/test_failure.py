import io
import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from distributary.cli.command.log_file import LogFile, logging_to, report, shown_while_written
from distributary.cli.command.output import Output
from distributary.cli.command.verb import GroupPage, Invocation, verb
from distributary.errors import ConfigError, DistributaryError, ErrorCode, SourceUnavailableError

ERROR = SourceUnavailableError(
    "the broker does not answer\x1b[31m",
    where="127.0.0.1:9092",
    evidence="first line\nsecond [bold] line with hunter2",
    next_step="start the broker",
)


def text_of(error: BaseException, **settings: bool) -> tuple[int, str, LogFile]:
    stderr, log = io.StringIO(), LogFile("test")
    output = Output(stdout=io.StringIO(), stderr=stderr, **settings)
    output.mask = lambda text: text.replace("hunter2", "***")
    return report(output, error, log), stderr.getvalue(), log


def test_a_block_has_every_part_and_ends_with_the_log() -> None:
    code, text, log = text_of(ERROR)
    lines = text.splitlines()
    assert code == 75
    assert lines[0].startswith("SOURCE_UNAVAILABLE  the broker")
    labels = " ".join(line.split()[0] for line in lines[1:])
    assert labels == "where seen second next docs log"
    assert lines[-2].endswith("distributary explain SOURCE_UNAVAILABLE")
    assert lines[-1].endswith(str(log.path))
    assert "Traceback" not in text
    assert "\x1b" not in text
    assert "hunter2" not in text + log.path.read_text()


def test_a_block_names_the_page_of_the_code_where_there_is_a_dashboard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DISTRIBUTARY_UI", "http://127.0.0.1:8642/")
    _, text, _ = text_of(ERROR)
    assert "page  http://127.0.0.1:8642/errors/SOURCE_UNAVAILABLE" in text


def test_the_log_has_the_traceback_and_debug_shows_it() -> None:
    try:
        raise ERROR
    except DistributaryError as error:
        _, text, log = text_of(error, debug=True)
    assert "Traceback" in text
    assert "Traceback" in log.path.read_text()


def test_a_defect_is_said_to_be_one() -> None:
    code, text, log = text_of(ZeroDivisionError("division by zero"))
    assert code == 1
    assert text.startswith("INTERNAL  ")
    assert "ZeroDivisionError" in log.path.read_text()


def test_a_wrong_configuration_needs_no_log() -> None:
    code, text, log = text_of(ConfigError("wrong", code=ErrorCode.CONFIRMATION_NEEDED))
    assert code == 2
    assert text.startswith("CONFIRMATION_NEEDED")
    assert not log.is_written


def test_as_json_the_error_is_the_document() -> None:
    stdout = io.StringIO()
    output = Output(as_json=True, stdout=stdout, stderr=io.StringIO())
    output.mask = lambda text: text.replace("hunter2", "***")
    assert report(output, ERROR, LogFile("test")) == 75
    document = json.loads(stdout.getvalue())
    assert document["version"] == 1
    error = document["error"]
    assert (error["code"], error["retryable"]) == ("SOURCE_UNAVAILABLE", True)
    assert "hunter2" not in stdout.getvalue()


def one_command(action: object) -> typer.Typer:
    app = typer.Typer(cls=GroupPage, rich_markup_mode=None)
    verb(app, "it", name="it")(action)  # type: ignore[arg-type]
    return app


def test_ctrl_c_is_130(capfd: pytest.CaptureFixture[str]) -> None:
    def it(call: Invocation) -> int:
        """Stops."""
        raise KeyboardInterrupt

    assert one_command(it)(["--json"], standalone_mode=False) == 130
    assert capfd.readouterr().out == ""


def test_libraries_write_to_the_log_only(capfd: pytest.CaptureFixture[str]) -> None:
    log = LogFile("test")
    with logging_to(log, lambda text: text.replace("hunter2", "***")):
        logging.getLogger("some.library").warning("password is %s", "hunter2")
    assert "some.library: password is ***" in log.path.read_text()
    said = capfd.readouterr()
    assert said.out + said.err == ""


def test_a_log_that_cannot_be_written_is_no_second_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    code, text, _ = text_of(ERROR)
    assert code == 75
    assert "log" not in [line.split()[0] for line in text.splitlines()]


def test_a_log_can_be_followed(tmp_path: Path) -> None:
    path, stream = tmp_path / "spark.log", io.StringIO()
    with shown_while_written(path, stream):
        path.write_text("one\ntwo\n")
    assert stream.getvalue() == "one\ntwo\n"


def test_sigterm_is_143(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "import distributary.cli.inspect.tables as tables\n"
        "def forever(*args, **kwargs):\n"
        "    print('started', flush=True)\n"
        "    time.sleep(60)\n"
        "tables.find_lake = forever\n"
        "from distributary.cli import main\n"
        "sys.exit(main(['tables']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
        child.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert child.wait(timeout=30) == 143
        assert time.monotonic() - began < 30
