"""The program that is put into sandboxes: what it is made from, and how it takes abuse."""

import hashlib
import os
import platform
import re
import select
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pinfold_helper
from pinfold_helper import _build
from pinfold_helper._digests import DIGESTS
from tests.helper import corpus

SOURCE = Path(_build.HERE) / "source"
CLANG = shutil.which("clang")
SANITIZERS = "-fsanitize=address,undefined,fuzzer", "-fno-sanitize-recover=all"


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory) -> dict[str, bytes]:
    """The programs, compiled from a copy of the source in another place."""
    folder = tmp_path_factory.mktemp("elsewhere")
    found = {}
    for machine in _build.MACHINES:
        _build.compile_for(machine, folder / machine)
        found[machine] = (folder / machine).read_bytes()
    return found


def test_a_build_gives_the_recorded_bytes(rebuilt) -> None:
    """Reproducible: whoever reads the source can have the very program that runs."""
    digests = {name: hashlib.sha256(program).hexdigest() for name, program in rebuilt.items()}
    assert digests == DIGESTS


@pytest.mark.parametrize("machine", pinfold_helper.machines())
def test_a_program_is_small_static_and_the_one_that_was_recorded(machine) -> None:
    program = pinfold_helper.load(machine)
    assert hashlib.sha256(program).hexdigest() == DIGESTS[machine]
    assert len(program) < 128 * 1024
    assert program.startswith(b"\x7fELF")
    assert b"/ld-" not in program
    assert not re.search(rb"/(home|root|work|tmp)/", program.replace(b"/tmp/.", b""))


ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
#: As in an environment that has the wheel and nothing else: no zig, no other dist.
FROM_WHEEL = """
import sys
sys.path[:] = [sys.argv[1], *(path for path in sys.path if "site-packages" not in path)]
import pinfold_helper
assert pinfold_helper.__file__.startswith(sys.argv[1])
for name in ("x86_64", "aarch64"):
    print(name, len(pinfold_helper.load(name)))
try:
    import ziglang
except ModuleNotFoundError:
    print("no zig")
"""


def test_the_wheel_holds_the_program_of_every_machine_and_needs_no_zig(tmp_path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path]
    source = _build.HERE.parents[1]
    subprocess.run([*command, source], check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(archive) as wheel:
        programs = {name for name in wheel.namelist() if "/programs/" in name}
        wheel.extractall(tmp_path / "unpacked")
    assert programs == {f"pinfold_helper/programs/{name}" for name in ELF_MACHINES}
    for machine, number in ELF_MACHINES.items():
        program = (tmp_path / "unpacked/pinfold_helper/programs" / machine).read_bytes()
        assert hashlib.sha256(program).hexdigest() == DIGESTS[machine]
        assert (program[:4], int.from_bytes(program[18:20], "little")) == (b"\x7fELF", number)
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", FROM_WHEEL, tmp_path / "unpacked"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    lines = [f"{name} {len(pinfold_helper.load(name))}" for name in ELF_MACHINES]
    assert said.splitlines() == [*lines, "no zig"]


def test_a_program_that_runs_is_replaced_by_a_build(tmp_path, monkeypatch) -> None:
    """Never written over: who runs it goes on, and no build fails for it."""
    fake = tmp_path / "package"
    (fake / "programs").mkdir(parents=True)
    for name in ("source", "_digests.py"):
        (fake / name).symlink_to(_build.HERE / name)
    monkeypatch.setattr(_build, "HERE", fake)
    monkeypatch.setattr(_build, "compile_for", lambda machine, output: output.write_text(machine))
    running = fake / "programs" / "x86_64"
    running.write_bytes(Path(shutil.which("sleep") or "/bin/sleep").read_bytes())
    running.chmod(0o755)
    with subprocess.Popen([running, "300"]) as process:
        _build.build(check=False)
        assert process.poll() is None
        process.kill()
    assert running.read_text() == "x86_64"
    assert {path.name for path in (fake / "programs").iterdir()} == set(_build.MACHINES)


def test_machines_go_by_their_other_names_too() -> None:
    assert pinfold_helper.load("amd64") == pinfold_helper.load("x86_64")
    assert pinfold_helper.load("arm64") == pinfold_helper.load("aarch64")


@pytest.mark.parametrize("machine", ["riscv64", "", "../x86_64", "i686"])
def test_there_is_none_for_another_machine(machine) -> None:
    with pytest.raises(LookupError, match="there is no helper for"):
        pinfold_helper.load(machine)


def test_a_damaged_program_is_refused(monkeypatch) -> None:
    monkeypatch.setitem(DIGESTS, "x86_64", "0" * 64)
    with pytest.raises(ValueError, match="not the recorded one"):
        pinfold_helper.load("x86_64")


def test_the_source_is_short_enough_to_be_read() -> None:
    lines = {path.name: path.read_text().count("\n") for path in SOURCE.iterdir()}
    assert max(lines.values()) < 400
    assert sum(lines.values()) < 3600
    assert all(
        len(line) <= 100 for path in SOURCE.iterdir() for line in path.read_text().split("\n")
    )


def test_it_says_how_it_is_used() -> None:
    program = _build.HERE / "programs" / platform.machine()
    done = subprocess.run([program, "nonsense"], capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: helper serve FOLDER")
    gone = subprocess.run([program, "connect", "/nonexistent"], capture_output=True, check=False)
    assert gone.returncode == 6


def test_nobody_can_come_before_the_one_who_started_it(tmp_path) -> None:
    """Its token is the first one told: a stranger at the socket is not even greeted before."""
    program = _build.HERE / "programs" / platform.machine()
    greeting, answer = 80, b"pinfold1" + bytes(32)
    with (
        subprocess.Popen(
            [program, "serve", tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as helper,
        socket.socket(socket.AF_UNIX) as stranger,
    ):
        assert helper.stdin is not None
        assert helper.stdout is not None
        assert helper.stdout.read(greeting).startswith(b"pinfold1")
        stranger.connect(str(tmp_path / "socket"))
        assert not select.select([stranger], [], [], 0.5)[0]
        helper.stdin.write(answer.replace(b"\0", b"x") + bytes(8))
        helper.stdin.flush()
        assert helper.stdout.read(8) == bytes(8)  # welcome
        stranger.settimeout(20)
        assert stranger.recv(greeting).startswith(b"pinfold1")
        stranger.sendall(answer + bytes(8))
        assert stranger.recv(1) == b""
        helper.kill()


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory) -> Path:
    """The parser under a fuzzer, with every sanitizer; main stays out of it."""
    if CLANG is None:
        pytest.skip("clang is not installed: make system")
    program: Path = tmp_path_factory.mktemp("fuzzer") / "fuzzer"
    flags = [CLANG, "-std=c11", "-g", "-O1", *SANITIZERS, f"-I{SOURCE}"]
    objects = []
    for source in [*SOURCE.glob("*.c"), Path(__file__).with_name("fuzz.c")]:
        if source.name not in ("main.c", "connection.c"):
            # Without a root no frame can name a file, however it is made up; and nothing is started.
            rename = ["-Dadd_root=true_add_root"] if source.name == "path.c" else ["-Dfork=no_fork"]
            objects.append(program.with_name(f"{source.name}.o"))
            subprocess.run([*flags, *rename, "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([*flags, *objects, "-o", program], check=True)
    return program


def fuzz(fuzzer: Path, folder: Path, *options: str) -> str:
    seeds = folder / "seeds"
    seeds.mkdir()
    corpus.write(seeds)
    done = subprocess.run(
        [fuzzer, seeds, "-max_len=4096", "-rss_limit_mb=512", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


def test_the_parser_takes_any_bytes(fuzzer, tmp_path) -> None:
    said = fuzz(fuzzer, tmp_path, "-runs=200000", "-max_total_time=20", "-seed=1")
    found = re.search(r"Done (\d+) runs", said)
    assert found is not None
    assert int(found[1]) >= 20_000


@pytest.mark.nightly
def test_the_parser_takes_any_bytes_for_a_long_time(fuzzer, tmp_path) -> None:
    said = fuzz(fuzzer, tmp_path, "-max_total_time=90")
    found = re.search(r"Done (\d+) runs", said)
    assert found is not None
    assert int(found[1]) >= 200_000
