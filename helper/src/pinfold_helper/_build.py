"""Compiles the helper with zig: `python -m pinfold_helper._build [--record]`, and by hatchling.

The same source and the same ziglang give the same bytes anywhere; their digests are recorded in
`_digests.py`. A wheel of others is refused; `load` refuses them too.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["FLAGS", "build", "compile_for"]

HERE = Path(__file__).parent
MACHINES = ("aarch64", "x86_64")
FLAGS = (
    "-std=c11",
    "-O2",
    "-static",
    "-s",
    "-fno-ident",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wconversion",
    "-Werror",
)


def compile_for(machine: str, output: Path) -> None:
    """Compile the program for one kind of machine.

    Raises:
        RuntimeError: it does not compile; the text is the compiler's.
    """
    sources = sorted(path.name for path in (HERE / "source").glob("*.c"))
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl"]
    # Relative names: nothing in the program depends on where it was built.
    done = subprocess.run(
        [*command, *FLAGS, *sources, "-o", str(output)],
        cwd=HERE / "source",
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"the helper for {machine} does not compile:\n{done.stderr}")


def build(*, record: bool = False, check: bool = True) -> dict[str, str]:
    """Compile all programs into `programs/` and return their digests.

    Args:
        record: write the digests down.
        check: refuse programs that are not the recorded ones.

    Raises:
        RuntimeError: one does not compile, or is not the one that was recorded.
    """
    digests = {}
    with TemporaryDirectory() as folder:
        for machine in MACHINES:
            output = Path(folder) / machine
            compile_for(machine, output)
            digests[machine] = hashlib.sha256(output.read_bytes()).hexdigest()
        lines = [f'    "{machine}": "{digest}",\n' for machine, digest in digests.items()]
        text = '"""SHA-256 of the programs; written by `_build.py --record`."""\n\nDIGESTS = {\n'
        text += "".join(lines) + "}\n"
        if record:
            (HERE / "_digests.py").write_text(text)
        elif check and (HERE / "_digests.py").read_text() != text:
            raise RuntimeError(
                "the programs are not the recorded ones; if the source or ziglang was changed on "
                f"purpose: python -m pinfold_helper._build --record\n{text}"
            )
        (HERE / "programs").mkdir(exist_ok=True)
        for machine in MACHINES:
            target = HERE / "programs" / machine
            fresh = target.with_name(f"{machine}.new")  # the one that is there may be running
            fresh.write_bytes((Path(folder) / machine).read_bytes())
            fresh.chmod(0o755)
            fresh.replace(target)
    return digests


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # not where wheels are built
    pass
else:

    class BuildHook(BuildHookInterface):  # type: ignore[type-arg]
        """Compiles before a wheel is made; for an editable install, whatever the source is now."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Called by hatchling."""
            if self.target_name == "wheel":
                build(check=version != "editable")


if __name__ == "__main__":
    for name, value in build(record="--record" in sys.argv[1:]).items():
        sys.stdout.write(f"{value}  {name}\n")
