"""Durable sandboxes as an fsspec file system: `pinfold://SANDBOX/workspace/PATH`.

::

    import pandas

    frame = pandas.read_csv("pinfold://box/workspace/data.csv")

SANDBOX is a name or an id; the path is the sandbox's own. Whatever speaks fsspec reads and writes
there, by fsspec's own loop or, with `asynchronous=True`, on the caller's.
"""

from __future__ import annotations

from pinfold.fs._file import SandboxFile as SandboxFile
from pinfold.fs._file import SandboxStream as SandboxStream
from pinfold.fs._system import SandboxFileSystem as SandboxFileSystem

__all__ = ["SandboxFile", "SandboxFileSystem", "SandboxStream"]
