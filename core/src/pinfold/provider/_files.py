"""Files in a sandbox (contract section 5)."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from enum import StrEnum
from pathlib import PurePosixPath

import attrs

from pinfold._tasks import each_of
from pinfold.errors import AlreadyExists, Effect, InvalidArgument, PinfoldError

__all__ = ["FileStat", "FileType", "Files", "TreeItem", "check_mode"]


class FileType(StrEnum):
    """What a name leads to, the last link not followed."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"  # FIFO, socket, device


@attrs.frozen(kw_only=True)
class FileStat:
    """Facts about one name; of a link, about the link itself (FS-2).

    Attributes:
        path: in the caller's view.
        type: what it is.
        size: bytes of a file's content or of a link's text; 0 for a directory.
        mode: permission bits, 0..0o7777; what the target has where `modes` is absent.
        mtime_ns: last change of the content, nanoseconds since the epoch.
        link: a link's text, else null.
    """

    path: PurePosixPath
    type: FileType
    size: int = 0
    mode: int = 0
    mtime_ns: int = 0
    link: str | None = None


@attrs.frozen(kw_only=True)
class TreeItem:
    """One entry of a tree on its way in or out, parents before children.

    Attributes:
        path: relative to the tree's root; `.` is the root itself.
        type: FILE, DIRECTORY or SYMLINK.
        mode: permission bits, or null for the target's default.
        size: bytes of a file, else 0.
        link: a link's text, else null.
        chunks: a file's content; read it to the end before the next item.
    """

    path: PurePosixPath
    type: FileType
    mode: int | None = None
    size: int = 0
    link: str | None = None
    chunks: AsyncIterable[bytes] | None = attrs.field(default=None, repr=False, eq=False)


class Files(ABC):
    """The files of one instance, seen as its commands see them (FS-6).

    Paths are absolute in the caller's view. A path that is relative, has `..` or NUL raises
    `InvalidArgument`; one that lies or leads outside raises `OutsideWorkspace` (FS-1, FS-2); these
    two are not repeated below. Operations that change something are atomic: after an error, and
    after a cancellation, the old state stands (FS-4), except where a method says otherwise. A
    transport that breaks raises `Unavailable` or a subclass, with its `effect`.
    """

    @abstractmethod
    async def read(
        self, path: PurePosixPath | str, *, offset: int = 0, length: int | None = None
    ) -> bytes:
        """Return a file's bytes from `offset`, at most `length` of them; links are followed.

        Raises:
            NotFound, IsADirectory, NotRegular, PermissionDenied: FS-5.
            TooLarge: what was asked for exceeds `limits.read_bytes`; stream it instead.
            InvalidArgument: a negative offset or length.
        """

    @abstractmethod
    async def write(
        self, path: PurePosixPath | str, data: bytes, *, mode: int | None = None
    ) -> None:
        """Replace or create a file; readers see the old or the new one, whole (FS-4).

        Parents are created. An existing mode is kept unless `mode` is given; a new file has
        `mode` or 0o644. Through a link that stays inside, the file it leads to is replaced.

        Raises:
            IsADirectory, NotADirectory, NotRegular, PermissionDenied, NoSpace: FS-5.
            TooLarge: beyond `limits.file_bytes`.
        """

    @abstractmethod
    async def stat(self, path: PurePosixPath | str) -> FileStat:
        """Return facts about a name, the last link not followed.

        Raises:
            NotFound, NotADirectory, PermissionDenied: FS-5.
        """

    @abstractmethod
    async def list(self, path: PurePosixPath | str) -> Sequence[FileStat]:
        """Return a directory's entries, sorted by name; the directory's own links are followed.

        Raises:
            NotFound, NotADirectory, PermissionDenied: FS-5.
        """

    @abstractmethod
    async def make_directory(
        self, path: PurePosixPath | str, *, parents: bool = True, exist_ok: bool = True
    ) -> None:
        """Make a directory, mode 0o755.

        Raises:
            AlreadyExists: it is there and not `exist_ok`, or is no directory.
            NotFound: a parent is missing and not `parents`.
            NotADirectory, PermissionDenied, NoSpace: FS-5.
        """

    @abstractmethod
    async def remove(self, path: PurePosixPath | str, *, recursive: bool = False) -> None:
        """Remove a file, a link itself, or a directory; never descends through a link (FS-4).

        Raises:
            NotFound, PermissionDenied: FS-5.
            Conflict: a directory that is not empty, and not `recursive`.
            InvalidArgument: the workspace or a writable root itself.
        """

    @abstractmethod
    async def rename(self, source: PurePosixPath | str, target: PurePosixPath | str) -> None:
        """Give a file, link or directory another name; a file or link there is replaced.

        Raises:
            NotFound: no source, or no directory to move it into.
            IsADirectory, NotADirectory: a file over a directory, or the reverse.
            Conflict: a directory over one that is not empty, or into itself.
            PermissionDenied, NoSpace: FS-5.
        """

    @abstractmethod
    async def symlink(self, path: PurePosixPath | str, target: str) -> None:
        """Make a link at `path` with the text `target`, which is stored verbatim.

        The text is the guest's own and may lead anywhere: following it is what is refused (FS-2).

        Raises:
            AlreadyExists, NotFound, NotADirectory, PermissionDenied: FS-5.
            Unimplemented: the feature `symlinks` is absent.
        """

    @abstractmethod
    async def chmod(self, path: PurePosixPath | str, mode: int) -> None:
        """Set the permission bits of a file or directory; links inside are followed.

        Raises:
            NotFound, PermissionDenied: FS-5.
            Unimplemented: the feature `modes` is absent.
        """

    @abstractmethod
    def download(self, path: PurePosixPath | str) -> AsyncIterator[bytes]:
        """Yield a file's bytes in chunks, in bounded memory, whatever its size (FS-7).

        Raises: as `read`, without TooLarge; at the first chunk.
        """

    @abstractmethod
    async def upload(
        self,
        path: PurePosixPath | str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int | None = None,
    ) -> int:
        """Write a file from chunks, in bounded memory; atomic as `write` (FS-4, FS-7).

        When `chunks` raises, the old file stands and the error propagates.

        Returns:
            The bytes written.
        Raises: as `write`.
        """

    # --- built on the above; a provider overrides them where it can save round trips ---

    async def read_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> Sequence[bytes | PinfoldError]:
        """Read many files; a file's error stands in its place."""
        results: builtins.list[bytes | PinfoldError] = []
        for path in paths:
            try:
                results.append(await self.read(path))
            except PinfoldError as exc:
                results.append(exc)
        return results

    async def stat_many(
        self, paths: Sequence[PurePosixPath | str]
    ) -> Sequence[FileStat | PinfoldError]:
        """Stat many names; a name's error stands in its place."""
        results: builtins.list[FileStat | PinfoldError] = []
        for path in paths:
            try:
                results.append(await self.stat(path))
            except PinfoldError as exc:
                results.append(exc)
        return results

    async def write_many(self, files: Mapping[PurePosixPath | str, bytes]) -> None:
        """Write many files, each atomically; not atomic as a whole.

        Raises: as `write`, at the first that fails; `effect` is done where earlier ones stand.
        """
        done = False
        for path, data in files.items():
            with _earlier(done=done):
                await self.write(path, data)
            done = True

    async def download_tree(self, path: PurePosixPath | str) -> AsyncIterator[TreeItem]:
        """Yield a directory and all in it, parents first; links as links; special files skipped.

        Raises: as `list` and `download`.
        """
        root = await self.stat(path)
        # Through a link to a directory it is the directory that is meant.
        mode = root.mode if root.type is FileType.DIRECTORY else None
        yield TreeItem(path=PurePosixPath("."), type=FileType.DIRECTORY, mode=mode)
        pending = [PurePosixPath(path)]
        while pending:
            directory = pending.pop()
            for entry in await self.list(directory):
                inner = entry.path.relative_to(PurePosixPath(path))
                if entry.type is FileType.DIRECTORY:
                    pending.append(entry.path)
                elif entry.type is FileType.OTHER:
                    continue
                is_file = entry.type is FileType.FILE
                yield TreeItem(
                    path=inner,
                    type=entry.type,
                    mode=entry.mode,
                    size=entry.size if is_file else 0,
                    link=entry.link,
                    chunks=self.download(entry.path) if is_file else None,
                )

    async def upload_tree(
        self,
        path: PurePosixPath | str,
        items: AsyncIterable[TreeItem] | Iterable[TreeItem],
    ) -> int:
        """Write a tree below a directory, which is made; each file is atomic, the whole is not.

        Returns:
            The entries written.
        Raises: as `upload`, `make_directory` and `symlink`, at the first that fails; `effect` is
            done where earlier ones stand.
        """
        root, count = PurePosixPath(path), 0
        modes: builtins.list[tuple[PurePosixPath, int]] = []
        await self.make_directory(root)
        async with aclosing(each_of(items)) as each:
            async for item in each:
                place = root / item.path
                with _earlier(done=count > 0):
                    if item.path.is_absolute():
                        raise InvalidArgument(
                            f"a path in a tree is relative, not {str(item.path)!r}"
                        )
                    if item.type is FileType.DIRECTORY:
                        await self.make_directory(place)
                        if item.mode is not None:
                            modes.append((place, item.mode))
                    elif item.type is FileType.SYMLINK:
                        await _put_link(self, place, item.link or "")
                    else:
                        await self.upload(
                            place, _none() if item.chunks is None else item.chunks, mode=item.mode
                        )
                count += 1
        # Last, and the deepest first: a directory may be closed to writes.
        for place, mode in sorted(modes, key=lambda pair: len(pair[0].parts), reverse=True):
            with _earlier(done=True):
                await self.chmod(place, mode)
        return count


def check_mode(mode: int) -> None:
    """Refuse what are no permission bits (FS-5).

    Raises:
        InvalidArgument: no integer, or not in 0..0o7777.
    """
    if type(mode) is not int or not 0 <= mode <= 0o7777:
        raise InvalidArgument("a mode is a number from 0 to 0o7777")


@contextmanager
def _earlier(*, done: bool) -> Iterator[None]:
    """Let an error tell what the earlier steps of a call did (ER-1)."""
    try:
        yield
    except PinfoldError as exc:
        if done and exc.effect is Effect.NONE:
            exc.effect = Effect.DONE
        raise


async def _put_link(files: Files, path: PurePosixPath, target: str) -> None:
    try:
        await files.symlink(path, target)
    except AlreadyExists:
        await files.remove(path)
        await files.symlink(path, target)


async def _none() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for chunk in nothing:
        yield chunk
