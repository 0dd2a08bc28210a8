"""Links swapped in while an operation runs lead nothing out (FS-2).

An attacker exchanges names as fast as it can: one is what it seems, the other a link that leads
out. Whatever an operation does, it does inside, or it refuses.

What decides is the program in the target's shell. Starting a shell takes longer than all that the
program does, so one call is made to run it many times, each with its arguments, its input and a
file descriptor table of its own: each run is a try, and each run's output is looked at.
"""

import ctypes
import hashlib
import mmap
import multiprocessing
import os
import shutil
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath

import anyio
import pytest

from pinfold.errors import Internal, PinfoldError
from pinfold.posix import Guest, equip
from pinfold.posix._bulk import Group, _hashed
from pinfold.posix._call import program
from pinfold.posix._walk import _by_paths
from pinfold.provider import FileType, InstanceRef, TreeItem
from tests.core.posix.conftest import Box, LocalInstance
from tests.core.posix.guests import BusyboxGuest, LocalGuest, end_all

pytestmark = pytest.mark.anyio

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
#: What a scan would tell of the file outside.
DIGEST = hashlib.sha256(b"OUTSIDE").hexdigest().encode()
#: Names that operations leave behind.
_MADE = ("f.link", "f.r", "stolen")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Repeating(Guest):
    """A guest in which each program of ours runs many times in one shell.

    Args:
        guest: where.
        log: a directory, as this machine and as the target name it.

    Attributes:
        times: how often; once, to begin with. Few enough that the last, which alone is heard, begins
            within the ten seconds that a stream is given.
        tries: how many runs went through, were refused, or gave up.
    """

    loop = """
        times=$1 log=$2 out=$3 text=$4
        shift 4
        cat >"$log/in"
        until [ $times = 1 ]; do
          times=$((times - 1))
          (eval "$text") <"$log/in" >>"$log/$out" 2>/dev/null
          printf '%s\\n' $? >>"$log/codes"
        done
        (eval "$text") <"$log/in" | tee -a "$log/$out"
    """

    def __init__(self, guest: Guest, log: tuple[Path, str]) -> None:
        self.guest = guest
        self.times = 1
        self.tries: Counter[str] = Counter()
        self._log, self._inside = log
        #: Files with what is not believed as it comes: the boundary that ends each, and what is.
        self._doubted: dict[Path, tuple[bytes, Callable[[str], str]]] = {}

    async def spawn(self, argv, env, cwd):
        shell, flag, text, name, *args = argv
        assert (flag, name) == ("-c", "pinfold")
        out = "out"
        for kind, believed in BELIEVED.items():
            if program(kind) in text:
                out = f"{kind}{len(self._doubted)}"
                boundary = (args[2] + args[1]).encode()
                self._doubted[self._log / out] = boundary, partial(believed, args[3:])
        loop = (shell, "-c", self.loop, name, str(self.times), self._inside, out, text, *args)
        return await self.guest.spawn(loop, env, cwd)

    def take(self) -> bytes:
        """Count what came of the tries since the last time; return all that they have told."""
        words = {"0": "through", "3": "refused", "125": "refused"}
        codes = self._log / "codes"
        if codes.exists():
            ends = codes.read_text().split()
            self.tries.update(words.get(code, "given up") for code in ends)
            codes.unlink()
        out = self._log / "out"
        said = out.read_bytes() if out.exists() else b""
        out.unlink(missing_ok=True)
        while self._doubted:
            file, (boundary, believed) = self._doubted.popitem()
            for run in file.read_bytes().split(boundary)[:-1]:
                _, _, text = run.decode("utf-8", "surrogateescape").partition("ok\n")
                said += ascii(believed(text)).encode()
            file.unlink()
        return said


def _listed(args: Sequence[str], text: str) -> str:
    """Return what is believed of `scan.sh`."""
    _, _, listing = text.partition("\n")
    return listing if args[2] else repr(_by_paths(listing))


def _sums(args: Sequence[str], text: str) -> str:
    """Return what is believed of `hash.sh`."""
    told = []
    for directory, names in zip(args[::2], args[1::2], strict=True):
        group = Group(directory, tuple(names.split("/")), tuple(range(names.count("/") + 1)))
        found, text = _hashed(group, text)
        told += found
    return repr(told)


#: Programs that open what they have looked at before, and how what they say is told apart.
BELIEVED = {"scan": _listed, "hash": _sums}


def _attack(workspace: bytes, out: bytes, counter: mmap.mmap) -> None:
    """Exchange `d` with a link out, and `f` in it with one, for ever; put back what is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open(workspace, os.O_RDONLY)
    swaps = rounds = 0
    while True:
        rounds += 1
        swaps += not libc.renameat2(here, b"d", here, b"l", _RENAME_EXCHANGE)
        for name in (b"d", b"l"):
            with suppress(OSError):
                inner = os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                if rounds % 8 == 0:
                    _plant(inner, out)
                for _ in range(3):
                    swaps += not libc.renameat2(inner, b"f", inner, b"fl", _RENAME_EXCHANGE)
                os.close(inner)
        if rounds % 8 == 0:
            with suppress(OSError):
                os.mkdir(b"d", dir_fd=here)
            with suppress(OSError):
                os.symlink(out, b"l", dir_fd=here)
            kinds = {stat.S_IFMT(_mode(name, here)) for name in (b"d", b"l")}
            if kinds == {stat.S_IFLNK}:  # neither is the directory any more
                with suppress(OSError):
                    os.unlink(b"l", dir_fd=here)
            _put(b"spare", here)
        counter[:8] = swaps.to_bytes(8, "little")


def _mode(name: bytes, directory: int) -> int:
    try:
        return os.lstat(name, dir_fd=directory).st_mode
    except OSError:
        return 0


def _put(name: bytes, directory: int) -> None:
    with suppress(OSError):
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644, dir_fd=directory)
        os.write(fd, b"inside")
        os.close(fd)


def _plant(inner: int, out: bytes) -> None:
    for made in _MADE:
        with suppress(OSError):
            os.unlink(made, dir_fd=inner)
    kinds = {stat.S_IFMT(_mode(name, inner)) for name in (b"f", b"fl")}
    if stat.S_IFREG not in kinds:
        with suppress(OSError):
            os.unlink(b"f", dir_fd=inner)
        _put(b"f", inner)
    if stat.S_IFLNK not in kinds:
        with suppress(OSError):
            os.unlink(b"fl", dir_fd=inner)
        with suppress(OSError):
            os.symlink(out + b"/f", b"fl", dir_fd=inner)


@contextmanager
def attack(box: Box) -> Iterator[mmap.mmap]:
    """Attack until the end; the buffer holds the number of swaps."""
    (box.workspace / "d").mkdir()
    (box.workspace / "l").symlink_to(box.out)
    inner = os.open(box.workspace / "d", os.O_DIRECTORY)
    _plant(inner, os.fsencode(box.out))
    os.close(inner)
    counter = mmap.mmap(-1, 8)
    arguments = (os.fsencode(box.workspace), os.fsencode(box.out), counter)
    attacker = multiprocessing.get_context("fork").Process(target=_attack, args=arguments)
    attacker.start()
    try:
        yield counter
    finally:
        attacker.kill()
        attacker.join()


async def chunks(*pieces: bytes):
    for piece in pieces:
        yield piece


#: name to calls, which take turns.
FAMILIES = {
    "read": (
        lambda box, path: box.files.read(path),
        lambda box, path: box.files.read(path, offset=1, length=3),
    ),
    "read many": (lambda box, path: box.files.read_many([path]),),
    "write": (lambda box, path: box.files.write(path, b"inside"),),
    "upload": (lambda box, path: box.files.upload(path, chunks(b"inside")),),
    "write many": (lambda box, path: box.files.write_many({path: b"inside"}),),
    "stat": (lambda box, path: box.files.stat(path),),
    "chmod": (lambda box, path: box.files.chmod(path, 0o600),),
    "list": (lambda box, path: box.files.list(PurePosixPath(path).parent),),
    "make": (lambda box, path: box.files.make_directory(f"{path}.d/e"),),
    "link": (lambda box, path: box.files.symlink(f"{path}.link", "x"),),
    "rename": (
        lambda box, path: box.files.rename(path, f"{path}.r"),
        lambda box, path: box.files.rename("/workspace/spare", path),
        lambda box, path: box.files.rename(path, "/workspace/stolen"),
    ),
    "remove": (lambda box, path: box.files.remove(path),),
    "remove all": (lambda box, path: box.files.remove(PurePosixPath(path).parent, recursive=True),),
    "download a tree": (lambda box, _: collect(box.files.download_tree("/workspace")),),
    "upload a tree": (lambda box, path: box.files.upload_tree("/workspace", [tree_item(path)]),),
    "scan": (lambda box, _: box.tree.scan(),),
    "cwd": (lambda box, path: box.sh("ls", cwd=PurePosixPath(path).parent),),
}


def tree_item(path: str) -> TreeItem:
    inner = PurePosixPath(path).relative_to("/workspace")
    return TreeItem(path=inner, type=FileType.FILE, mode=0o640, size=6, chunks=chunks(b"inside"))


async def collect(tree) -> list[object]:
    found: list[object] = []
    async with aclosing(tree) as items:
        async for item in items:
            if item.chunks is not None:
                async with aclosing(item.chunks) as pieces:
                    found += [piece async for piece in pieces]
            found.append(str(item.path))
    return found


async def race(box: Box, family: str, tries: int) -> str:
    """Run a family under fire; return what happened, in words with numbers."""
    (box.outside / "f").write_text("OUTSIDE")
    (box.outside / "secret-name").mkdir()
    (box.outside / "f").chmod(0o644)
    before = look(box.outside)
    guest = repeating(box)
    calls = FAMILIES[family]
    with attack(box) as counter:
        number = 0
        while guest.tries.total() < tries or not counter[0]:
            try:
                said = ascii(await calls[number % len(calls)](box, "/workspace/d/f"))
            except Internal:
                raise
            except PinfoldError:
                said = ""
            number += 1
            for text in (said.encode(), guest.take()):
                assert b"OUTSIDE" not in text, family
                assert b"secret-name" not in text, family
                assert DIGEST not in text, family
            assert look(box.outside) == before, family
        swaps = int.from_bytes(counter[:8], "little")
    assert look(box.outside) == before, family
    tally = ", ".join(f"{count} {what}" for what, count in sorted(guest.tries.items()))
    return f"{family}: {guest.tries.total()} tries ({tally}) in {number} calls, {swaps} swaps"


def repeating(box: Box) -> Repeating:
    assert isinstance(box.guest, Repeating)
    return box.guest


def look(folder: Path) -> dict[object, object]:
    found: dict[object, object] = {}
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else None
        found[path] = (path.lstat().st_mode, path.lstat().st_ino, content)
    return found


#: In these each swap is met by leaving a name out, or by going another way: all come to their end.
NEVER_REFUSED = {
    "scan",
    "stat",
    "read many",
    "write many",
    "download a tree",
    "upload a tree",
    "chmod",
}


@pytest.fixture
async def box(anyio_backend, kind: str, request, tmp_path: Path) -> AsyncIterator[Box]:
    """A box whose guest runs each program again and again."""
    places = [tmp_path / name for name in ("w", "outside", "log")]
    for place in places:
        place.mkdir(mode=0o755)
    workspace, outside, log = places
    guest: LocalGuest = LocalGuest()
    root, out, inside = str(workspace), str(outside), str(log)
    if kind == "busybox":
        root, out, inside = "/workspace", "/outside", "/log"
        binds = ("--bind", str(outside), out, "--bind", str(log), inside)
        guest = BusyboxGuest(request.getfixturevalue("busybox"), workspace, *binds)
    try:
        repeating = Repeating(guest, (log, inside))
        kit = await equip(repeating, root=PurePosixPath(root), identity=str(tmp_path))
        instance = LocalInstance(InstanceRef(provider="test", id=str(tmp_path)), kit)
        yield Box(kind, instance, repeating, workspace, outside, out)
        shutil.rmtree(kit.control, ignore_errors=True)
    finally:
        guest.close()
        end_all(str(tmp_path))


async def hold(box: Box, family: str, tries: int, times: int) -> None:
    """Hold a family to FS-2 through so many tries, with the control that there was an attack."""
    guest = repeating(box)
    guest.times = times
    report = await race(box, family, tries)
    print(report)
    counts = guest.tries
    assert counts["through"] > 0, f"control: it works, in between the swaps; {report}"
    if family not in NEVER_REFUSED:
        assert counts["refused"] + counts["given up"] > 0, f"control: it was attacked; {report}"


@pytest.mark.parametrize("kind", ["shell"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_fs2_no_swap_leads_out(box, family) -> None:
    """1,000 tries of each family."""
    await hold(box, family, 1_000, times=25)


@pytest.mark.parametrize("kind", ["busybox"])
@pytest.mark.parametrize("family", ["list", "remove all", "scan"])
async def test_fs2_no_swap_leads_out_where_busybox_has_a_way_of_its_own(box, family) -> None:
    """1,000 tries: its find goes by paths, and its rm, which we don't use."""
    await hold(box, family, 1_000, times=25)


@pytest.mark.parametrize("kind", ["shell"])
async def test_a_check_before_the_use_loses_the_same_race(box) -> None:
    """The control: a program that looks, and then opens, is led out within moments."""
    naive = '[ ! -L "$1/d" ] && [ ! -L "$1/d/f" ] && cat "$1/d/f"'
    (box.outside / "f").write_text("OUTSIDE")
    guest = repeating(box)
    guest.times = 25
    with attack(box), anyio.fail_after(120):
        while b"OUTSIDE" not in guest.take():
            argv = ("sh", "-c", naive, "pinfold", str(box.workspace))
            process = await guest.spawn(argv, {}, PurePosixPath("/"))
            await process.stdin.aclose()
            await process.wait()
            await process.aclose()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "tries"), [("shell", 2_000), ("busybox", 1_000)], ids=["shell", "busybox"]
)
@pytest.mark.parametrize("family", FAMILIES)
async def test_fs2_no_swap_leads_out_in_more_tries(box, family, tries) -> None:
    """As many as fit: each try starts two to five processes (100,000 of each take two hours)."""
    await hold(box, family, tries, times=25)
