"""fsspec's own suite: copy, get, put, open, pipe."""

from __future__ import annotations

import posixpath

import pytest
from fsspec.implementations.local import LocalFileSystem, make_path_posix
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)


class Fixtures(AbstractFixtures):  # type: ignore[misc]  # fsspec is not typed
    @pytest.fixture
    def fs(self, fs):
        return fs

    @pytest.fixture
    def fs_path(self):
        return "/workspace"

    @pytest.fixture
    def fs_join(self):
        return posixpath.join

    @pytest.fixture
    def local_fs(self):
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_join(self):
        return posixpath.join

    @pytest.fixture
    def local_path(self, tmp_path):
        return make_path_posix(str(tmp_path))


class TestCopy(Fixtures, AbstractCopyTests):  # type: ignore[misc]  # fsspec is not typed
    pass


class TestGet(Fixtures, AbstractGetTests):  # type: ignore[misc]  # fsspec is not typed
    pass


class TestPut(Fixtures, AbstractPutTests):  # type: ignore[misc]  # fsspec is not typed
    pass


class TestOpen(Fixtures, AbstractOpenTests):  # type: ignore[misc]  # fsspec is not typed
    pass


class TestPipe(Fixtures, AbstractPipeTests):  # type: ignore[misc]  # fsspec is not typed
    pass
