"""A fresh environment, as a user has it: our dists from wheels, the rest from where it is locked."""

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: So that pip needs no network; what it would fetch for a build is there already.
PIP = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it the other way round: no isolation
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}

# Ours must come from the wheels alone; and what a .pth file names is not for another environment.
_NOT_SHARED = re.compile(r"_*(editable|pinfold|pycache)|.*\.pth$", re.IGNORECASE)


def run(*command: object) -> str:
    """Run a command that must succeed and return what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(source: Path, out: Path) -> Path:
    """Build a wheel from a project's folder."""
    before = set(out.glob("*.whl"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source)
    (wheel,) = set(out.glob("*.whl")) - before
    return wheel


def make(folder: Path) -> Path:
    """Make an environment with everything but our dists in sight, and return its bin folder."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    shared = folder / "shared"
    shared.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not _NOT_SHARED.match(entry.name):
            (shared / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "shared.pth").write_text(f"{shared}\n")
    return python.parent


def install(bin: Path, wheels: Iterable[Path]) -> None:  # noqa: A002
    """Install wheels and nothing else."""
    pip = [sys.executable, "-m", "pip", "--python", bin / "python", "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", "--disable-pip-version-check", *wheels)
