import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributary.engine.progress.claim import Claim, state_of
from distributary.errors import FencedError, LakeUnavailableError, OwnedError
from distributary.store.base import Store, at
from distributary.store.disk import Disk
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def quiet_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A claim that nobody released would go on beating beside the tests that follow."""
    taken: list[Claim] = []
    take = Claim.take

    def remembered(checkpoint: Store, *, lease: float) -> Claim:
        taken.append(take(checkpoint, lease=lease))
        return taken[-1]

    monkeypatch.setattr(Claim, "take", remembered)
    yield
    for claim in taken:
        claim._ended.set()
        claim._heart.join()


def test_the_first_claim_has_epoch_one(tmp_path: Path) -> None:
    claim = Claim.take(at(tmp_path), lease=5)
    assert claim.epoch == 1
    assert state_of(at(tmp_path)) == "running"
    claim.check()
    claim.release()
    assert state_of(at(tmp_path)) == "stopped"


def test_a_beat_that_comes_late_does_not_take_the_good_bye_back(tmp_path: Path) -> None:
    claim = Claim.take(at(tmp_path), lease=600)
    claim.release()
    assert not claim._renewed()
    assert state_of(at(tmp_path)) == "stopped"


def test_a_living_owner_keeps_its_checkpoint_and_is_named(tmp_path: Path) -> None:
    claim = Claim.take(at(tmp_path), lease=5)
    with pytest.raises(OwnedError) as caught:
        Claim.take(at(tmp_path), lease=5)
    assert str(os.getpid()) in caught.value.what
    claim.release()


def test_a_released_claim_is_taken_at_once(tmp_path: Path) -> None:
    Claim.take(at(tmp_path), lease=600).release()
    assert Claim.take(at(tmp_path), lease=5).epoch == 2


def _owner_process(folder: Path) -> subprocess.Popen[str]:
    code = (
        "import sys,time;from distributary.store.base import at\n"
        "from distributary.engine.progress.claim import Claim\n"
        "c=Claim.take(at(sys.argv[1]),lease=600);print('taken',flush=True);time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "taken"
    return process


def test_a_killed_owner_is_followed_without_waiting_for_its_lease(tmp_path: Path) -> None:
    process = _owner_process(tmp_path)
    process.kill()
    process.communicate()
    assert state_of(at(tmp_path)) == "crashed"
    assert Claim.take(at(tmp_path), lease=5).epoch == 2


def test_a_stopped_owner_is_taken_over_and_fenced_when_it_wakes_up(tmp_path: Path) -> None:
    process = _owner_process(tmp_path)
    with pytest.raises(OwnedError):
        Claim.take(at(tmp_path), lease=5)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 10
        while state_of(at(tmp_path)) == "running" and time.monotonic() < deadline:
            time.sleep(0.05)
        taken = Claim.take(at(tmp_path), lease=5)
        assert taken.epoch == 2
        taken.check()
    finally:
        process.kill()
        process.communicate()


def test_who_is_overtaken_is_fenced(tmp_path: Path) -> None:
    first = Claim.take(at(tmp_path), lease=5)
    claim_file = tmp_path / "claims" / "0000000002.json"
    claim_file.write_text(json.dumps({**_as_dict(first), "epoch": 2, "pid": 1}))
    with pytest.raises(FencedError):
        first.check()
    first.release()


def _as_dict(claim: Claim) -> dict[str, object]:
    owner = claim.owner
    return {name: getattr(owner, name) for name in owner.__dataclass_fields__}


def test_an_owner_whose_claim_was_removed_is_fenced(tmp_path: Path) -> None:
    claim = Claim.take(at(tmp_path), lease=5)
    (tmp_path / "claims" / "0000000001.json").unlink()
    with pytest.raises(FencedError):
        claim.check()
    claim.release()


def test_a_claim_of_the_same_epoch_in_a_new_life_is_another_claim(tmp_path: Path) -> None:
    first = Claim.take(at(tmp_path / "cp"), lease=5)
    shutil.rmtree(tmp_path / "cp")
    second = Claim.take(at(tmp_path / "cp"), lease=5)
    assert second.epoch == first.epoch
    second.check()
    with pytest.raises(FencedError):
        first.check()
    first.release()
    # a process that is fenced says no good-bye in the name of another
    assert state_of(at(tmp_path / "cp")) == "running"
    second.release()


def test_a_heart_that_could_not_beat_for_a_while_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Claim.take(at(tmp_path), lease=1)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "swap", _read_only)
        time.sleep(0.5)
        claim.check()
        time.sleep(1)
        # nobody may write now, and nothing is lost yet: it is tried again
        with pytest.raises(LakeUnavailableError) as caught:
            claim.check()
        assert caught.value.retryable
    claim.check()
    before = claim.owner.beat
    eventually(lambda: claim.owner.beat > before, seconds=10)
    claim.check()
    claim.release()


def _read_only(*args: object, **kwargs: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_claim_that_was_emptied_is_followed_after_its_lease(tmp_path: Path) -> None:
    Claim.take(at(tmp_path), lease=5)._ended.set()
    path = tmp_path / "claims" / "0000000001.json"
    path.write_text("")
    with pytest.raises(OwnedError):
        Claim.take(at(tmp_path), lease=5)
    for each in path.parent.iterdir():
        os.utime(each, (1, 1))
    assert Claim.take(at(tmp_path), lease=5).epoch == 2


def test_an_owner_elsewhere_is_not_to_be_killed_here(tmp_path: Path) -> None:
    claim = Claim.take(at(tmp_path), lease=600)
    claim._ended.set()
    path = tmp_path / "claims" / "0000000001.json"
    path.write_text(json.dumps({**_as_dict(claim), "host": "elsewhere"}))
    with pytest.raises(OwnedError) as caught:
        Claim.take(at(tmp_path), lease=5)
    assert "kill" not in caught.value.next_step
    assert "elsewhere" in caught.value.next_step


def test_of_many_that_start_at_once_one_wins(tmp_path: Path) -> None:
    code = (
        "import sys,time;from pathlib import Path\n"
        "from distributary.engine.progress.claim import Claim\n"
        "from distributary.store.base import at\n"
        "from distributary.errors import OwnedError\n"
        "while not Path(sys.argv[2]).exists(): time.sleep(0.001)\n"
        "try:\n c=Claim.take(at(sys.argv[1]),lease=60);print('won',flush=True);time.sleep(2)\n"
        "except OwnedError: print('owned',flush=True)\n"
    )
    go = tmp_path / "go"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "cp"), str(go)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    time.sleep(1)
    go.touch()
    answers = sorted(p.communicate()[0].strip() for p in processes)
    assert answers == ["owned", "owned", "owned", "won"]
