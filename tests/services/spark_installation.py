"""An environment with another version of Spark, in which this very project runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import platformdirs

from distributary.deploy.package import locked, write_wheel
from distributary.store.disk import held

LOCKS = Path(__file__).parents[1] / "spark" / "locks"
"""The newest patch of each version, and what its client needs for Spark Connect."""
_BUILD_LOCK = Path(__file__).parents[2] / "src" / "distributary" / "deploy" / "build.lock"
_UV = Path(sys.executable).with_name("uv")


@dataclass(frozen=True)
class SparkInstallation:
    """An interpreter with one version of PySpark, and this project beside its packages."""

    python: Path
    site: Path
    """The folder of this project's wheel, unpacked: the environment is shared by all checkouts."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process of this installation."""
        kept = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "SPARK_REMOTE")}
        return {
            **kept,
            "PYTHONPATH": str(self.site),
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def run(self, *words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command of this project's in a folder."""
        return self._python("-m", "distributary", *map(str, words), folder=folder)

    def home(self) -> Path:
        """The folder of its Spark."""
        code = "import os, pyspark; print(os.path.dirname(pyspark.__file__))"
        return Path(self._python("-c", code, folder=self.site).stdout.strip())

    def connectors(self) -> list[Path]:
        """Its connectors, fetched where this user lacks them."""
        code = (
            "from distributary.spark.jars import ensure_connectors\n"
            "print(*ensure_connectors(), sep='\\n')"
        )
        done = self._python("-c", code, folder=self.site)
        assert done.returncode == 0, done.stderr[-3000:]
        return [Path(line) for line in done.stdout.splitlines()]

    def _python(self, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), *words],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )


def spark_installation(minor: str, site: Path) -> SparkInstallation:
    """The newest patch of a version; its environment is made once in the user's cache."""
    write_wheel(site / "wheel" / "distributary-0-py3-none-any.whl")
    shutil.unpack_archive(next((site / "wheel").glob("*.whl")), site / "unpacked", "zip")
    return SparkInstallation(_environment(minor) / "bin" / "python", site / "unpacked")


def _environment(minor: str) -> Path:
    lock = LOCKS / f"{minor}.lock"
    texts = [locked(), lock.read_text("utf-8"), sys.version]
    key = sha256("\n".join(texts).encode()).hexdigest()[:16]
    folder = platformdirs.user_cache_path("distributary") / "dev" / f"spark-{minor}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        folder.with_name(f"{folder.name}.lock").open("w") as file,
        held(file, waiting=lambda: None),
    ):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder, lock)
            (folder / "complete").touch()
    return folder


def _make(folder: Path, lock: Path) -> None:
    subprocess.run([_UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    stored = "pyspark:--build-option=--compression=stored"
    options = ["--require-hashes", "--no-build-isolation", "--config-settings-package", stored]
    with tempfile.TemporaryDirectory() as scratch:
        packages = Path(scratch, "requirements.lock")
        packages.write_text(locked(), "utf-8")
        for one in (_BUILD_LOCK, packages, lock):
            install = [_UV, "--no-config", "pip", "install", "--quiet", "--python", folder]
            subprocess.run([*install, *options, "--requirement", one], check=True)
