"""Reach files below a root with no gap between check and use (FS-2).

Two ways come to the same result. Where the kernel has openat2 it resolves a whole path in one
call and refuses what leads out. Everywhere else, and for the absolute links that openat2 refuses
though they stay inside, `_walk` enters one component after the other, each relative to a directory
that is already open, and never lets the kernel follow a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import attrs

from pinfold_host._linux import O_PATH, openat2_or_none

__all__ = ["Escape", "Place", "Root", "Roots"]

_MAX_LINKS = 40
_MAX_PATH = 4000  # PATH_MAX, with room
_MAX_RACES = 1000
_RACED = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.EAGAIN, errno.ENOENT})


class Escape(OSError):
    """The path leads out of the roots."""

    def __init__(self) -> None:
        super().__init__(errno.EXDEV, "it leads out of the workspace and the writable roots")


class Place(NamedTuple):
    """A name in an open directory; `.` for a root itself. The descriptor is the holder's."""

    directory: int
    name: bytes


@attrs.frozen(kw_only=True)
class Root:
    """One folder that may be reached.

    Attributes:
        caller: its path in the caller's view.
        guest: its path as commands see it, which absolute links mean.
        fd: the folder, open.
        folder: where it really is.
    """

    caller: PurePosixPath
    guest: bytes
    fd: int
    folder: str


class Roots:
    """All folders of one instance that may be reached.

    Args:
        roots: the workspace first.
        use_openat2: None to use it where the kernel has it.
    """

    def __init__(self, roots: Sequence[Root], *, use_openat2: bool | None = None) -> None:
        self.roots = tuple(roots)
        self._is_closed = False
        opened = os.fstat(self.roots[0].fd)
        self._identity = (opened.st_ino, opened.st_dev)
        self._openat2 = openat2_or_none() if use_openat2 is not False else None
        # The longest match wins, should one root lie in another.
        self._by_depth = sorted(roots, key=lambda root: -len(root.caller.parts))
        self._by_name = [(root, str(root.caller)) for root in self._by_depth]

    def _check_open(self) -> None:
        if self._is_closed:  # the descriptors may be somebody else's by now
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    @property
    def is_direct(self) -> bool:
        """The kernel resolves paths (openat2)."""
        return self._openat2 is not None

    def close(self) -> None:
        """Close the folders: they are lost from now on."""
        self._is_closed = True
        for root in self.roots:
            os.close(root.fd)

    def are_lost(self) -> bool:
        """The workspace was removed, moved or replaced behind our back, or let go of (LC-5)."""
        root = self.roots[0]
        if self._is_closed:
            return True
        try:
            found = os.stat(root.folder)
        except PermissionError:  # asked as the guest, who may not look: no sign of anything
            return False
        except OSError:
            return True
        return (found.st_ino, found.st_dev) != self._identity

    def split(self, path: PurePosixPath) -> tuple[Root, bytes]:
        """Return the root that holds a path of the caller's, and the rest, `""` for itself."""
        self._check_open()
        text = str(path)
        for root, name in self._by_name:
            if text.startswith(name) and text[len(name) : len(name) + 1] in {"", "/"}:
                return root, os.fsencode(text[len(name) + 1 :])
        raise Escape

    def as_caller(self, path: PurePosixPath) -> PurePosixPath:
        """Return the caller's name for a path that is named as commands see it.

        Raises:
            Escape: it lies in none of the roots.
        """
        text = str(path)
        for root in self._by_depth:
            own = os.fsdecode(root.guest)
            if text == own:
                return root.caller
            if text.startswith(f"{own}/"):
                return root.caller / text[len(own) + 1 :]
        raise Escape

    def open(self, path: PurePosixPath, flags: int) -> int:
        """Open what a path leads to, links that stay inside followed.

        Raises:
            Escape: it leads out.
            OSError: as open.
        """
        root, rest = self.split(path)
        if self._openat2 is not None:
            try:
                return self._openat2(root.fd, rest, flags, follow=True)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EAGAIN):
                    raise
        for _ in range(_MAX_RACES):
            with self._walk(root, rest, follow=True) as place:
                try:
                    return os.open(
                        place.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.directory
                    )
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise  # ELOOP: a link was put there meanwhile; walk again
        raise OSError(errno.EAGAIN, "the path keeps changing")

    def open_inner(self, path: bytes, flags: int) -> int:
        """Open what has this very path below the workspace: no link on it is followed.

        Raises:
            OSError: as open; ELOOP or ENOTDIR for a link.
        """
        self._check_open()
        steps = [part for part in path.split(b"/") if part] or [b"."]
        if self._openat2 is not None:
            steps = list(_stretches(steps))
        held: int | None = None
        try:
            for index, step in enumerate(steps):
                wanted = flags if index == len(steps) - 1 else O_PATH | os.O_DIRECTORY
                base = self.roots[0].fd if held is None else held
                if self._openat2 is not None:
                    fd: int = self._openat2(base, step, wanted, follow=False)
                else:
                    fd = os.open(step, wanted | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=base)
                if held is not None:
                    os.close(held)
                held = fd
        except BaseException:
            if held is not None:
                os.close(held)
            raise
        return -1 if held is None else held

    @contextlib.contextmanager
    def at(self, path: PurePosixPath) -> Iterator[Place]:
        """Give the directory that holds a name, and the name, which is not followed.

        Raises:
            Escape: a link on the way to it leads out.
            OSError: as open.
        """
        root, rest = self.split(path)
        if self._openat2 is not None:
            head, _, name = rest.rpartition(b"/")
            try:
                fd = self._openat2(root.fd, head, O_PATH | os.O_DIRECTORY, follow=True)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EAGAIN):
                    raise
            else:
                try:
                    yield Place(fd, name or b".")
                finally:
                    os.close(fd)
                return
        with self._walk(root, rest, follow=False) as place:
            yield place

    @contextlib.contextmanager
    def final(self, path: PurePosixPath, *, make_parents: bool) -> Iterator[Place]:
        """Give the directory and name that a path comes down to, links inside followed.

        The name itself need not be there, and is no link as far as anyone can tell; whoever
        replaces it by rename follows none.

        Args:
            path: the caller's.
            make_parents: make missing directories on the way, mode 0o755; when the block fails,
                they are removed again.

        Raises:
            Escape: it leads out.
            OSError: as open.
        """
        if self._openat2 is not None:
            with contextlib.ExitStack() as stack:
                place = None
                with contextlib.suppress(FileNotFoundError):
                    place = stack.enter_context(self.at(path))
                if place is not None and not _is_link(place):
                    yield place
                    return
        root, rest = self.split(path)
        with self._walk(root, rest, follow=True, make_parents=make_parents) as place:
            yield place

    @contextlib.contextmanager
    def _walk(
        self, root: Root, rest: bytes, *, follow: bool, make_parents: bool = False
    ) -> Iterator[Place]:
        walk = _Walk(self.roots, root)
        try:
            yield walk.to(rest, follow=follow, make_parents=make_parents)
        except BaseException:
            walk.undo()
            raise
        finally:
            walk.close()


def _stretches(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Join names to paths as long as one call takes."""
    stretch = b""
    for part in parts:
        if stretch and len(stretch) + len(part) >= _MAX_PATH:
            yield stretch
            stretch = b""
        stretch = stretch + b"/" + part if stretch else part
    yield stretch


def _is_link(place: Place) -> bool:
    try:
        os.readlink(place.name, dir_fd=place.directory)
    except OSError:
        return False
    return True


class _Walk:
    """One way down, held open."""

    def __init__(self, roots: Sequence[Root], root: Root) -> None:
        self._roots = roots
        self._opened: list[int] = []
        self._stack: list[int] = []
        self._made: list[tuple[int, bytes]] = []
        self._links = 0
        self._races = 0
        self._start(root)

    def close(self) -> None:
        self._leave()
        while self._made:
            os.close(self._made.pop()[0])

    def undo(self) -> None:
        """Remove the directories that were made on the way and that nobody has used since."""
        for here, name in reversed(self._made):
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=here)

    def _leave(self) -> None:
        for fd in self._stack[1:]:
            os.close(fd)
        self._stack = []

    def _start(self, root: Root) -> None:
        self._leave()
        self._stack = [root.fd]

    def to(self, rest: bytes, *, follow: bool, make_parents: bool) -> Place:
        pending = deque(rest.split(b"/"))
        while pending:
            part = pending.popleft()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if len(self._stack) == 1:
                    raise Escape
                os.close(self._stack.pop())
                continue
            last = not any(more not in (b"", b".") for more in pending)
            if last and not follow:
                return Place(self._stack[-1], part)
            target = self._link_text(part)
            if target is not None:
                self._turn(target, pending)
            elif last:
                return Place(self._stack[-1], part)
            elif not self._enter(part, make_parents=make_parents):
                pending.appendleft(part)
        return Place(self._stack[-1], b".")

    def _link_text(self, part: bytes) -> bytes | None:
        try:
            return os.readlink(part, dir_fd=self._stack[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def _turn(self, target: bytes, pending: deque[bytes]) -> None:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith(b"/"):
            root, target = self._root_of(target)
            self._start(root)
        pending.extendleft(reversed(target.split(b"/")))

    def _root_of(self, target: bytes) -> tuple[Root, bytes]:
        """Find the root that an absolute link means; `..` in it is followed step by step."""
        parts = [part for part in target.split(b"/") if part not in (b"", b".")]
        for root in sorted(self._roots, key=lambda root: -len(root.guest)):
            own = root.guest.strip(b"/").split(b"/")
            if parts[: len(own)] == own:
                return root, b"/".join(parts[len(own) :])
        raise Escape

    def _enter(self, part: bytes, *, make_parents: bool) -> bool:
        flags = O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        here = self._stack[-1]
        try:
            self._stack.append(os.open(part, flags, dir_fd=here))
        except FileNotFoundError:
            if not make_parents:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=here)
                self._made.append((os.dup(here), part))
        except OSError as error:
            if error.errno not in _RACED or not self._is_now_a_link(part):
                raise  # not a directory, and no link that was put there meanwhile
        else:
            return True
        self._races += 1
        if self._races > _MAX_RACES:
            raise OSError(errno.EAGAIN, "the path keeps changing")
        return False

    def _is_now_a_link(self, part: bytes) -> bool:
        return _is_link(Place(self._stack[-1], part))
