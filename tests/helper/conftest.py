"""The helper as its tests build it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pinfold_helper import _build


def compiler() -> str:
    found = shutil.which("clang") or shutil.which("gcc")
    if found is None:
        pytest.skip("neither clang nor gcc is installed: make system")
    return found


@pytest.fixture(scope="session")
def sanitized_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With address and undefined-behaviour sanitizers: whatever they find ends it."""
    program: Path = tmp_path_factory.mktemp("sanitized") / "helper"
    sources = sorted((Path(_build.HERE) / "source").glob("*.c"))
    flags = "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"
    subprocess.run(
        [compiler(), *flags, "-fno-sanitize-recover=all", *sources, "-o", program], check=True
    )
    return program
