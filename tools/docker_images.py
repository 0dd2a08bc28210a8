"""The images that the tests run, made without a registry.

- `pinfold-test:busybox` is a static busybox and the few files that a system has.
- `pinfold-test:debian` is what debootstrap calls minbase. `python -m tools.docker_images fetch` makes its
  file tree, once, in the user's cache folder; loading it later needs no network.
"""

import contextlib
import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

REPOSITORY = "pinfold-test"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER = 1000
PACKAGES = ("ca-certificates", "procps")  # beyond minbase
DROPPED = ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man")


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pinfold-tests"


def debian_tar() -> Path:
    key = hashlib.sha256("\n".join((release(), *PACKAGES, *DROPPED)).encode()).hexdigest()[:12]
    return cache() / f"debian-{key}.tar"


def release() -> str:
    """Return the code name of the Debian release of this machine, or of a fallback."""
    with contextlib.suppress(OSError):
        facts = dict(
            line.split("=", 1)
            for line in Path("/etc/os-release").read_text().split()
            if "=" in line
        )
        if facts.get("ID") == "debian" and "VERSION_CODENAME" in facts:
            return facts["VERSION_CODENAME"]
    return "bookworm"


def mirror() -> str:
    """Return where this machine's own apt gets its packages from."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        check=True,
        capture_output=True,
        text=True,
    )
    return next(line for line in done.stdout.splitlines() if "security" not in line)


def fetch() -> None:
    """Make the file tree of the Debian image, unless it is there."""
    target = debian_tar()
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pinfold-debian-", dir="/var/tmp") as folder:
        root = Path(folder) / "root"
        log = subprocess.run(
            [
                "debootstrap",
                "--variant=minbase",
                f"--include={','.join(PACKAGES)}",
                release(),
                root,
                mirror(),
            ],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("proc", "sys"):
            subprocess.run(["umount", "-q", root / name], check=False)
        if log.returncode != 0:
            sys.exit(
                "docker_images: debootstrap failed:\n" + "\n".join(log.stdout.splitlines()[-20:])
            )
        for name in DROPPED:
            shutil.rmtree(root / name, ignore_errors=True)
        with (root / "etc/passwd").open("a") as passwd:
            passwd.write(f"user:x:{USER}:{USER}::/home/user:/bin/bash\n")
        with (root / "etc/group").open("a") as group:
            group.write(f"user:x:{USER}:\n")
        for name in ("home/user", "workspace"):
            (root / name).mkdir()
            os.chown(root / name, USER, USER)
        draft = target.with_suffix(f".{os.getpid()}")
        subprocess.run(
            ["tar", "-C", root, "--numeric-owner", "--one-file-system", "-cf", draft, "."],
            check=True,
        )
        draft.replace(target)


def busybox_tar() -> bytes:
    """Return the file tree of the busybox image as a tar."""
    program = shutil.which("busybox")
    if program is None:
        raise FileNotFoundError("busybox is not installed (make system)")
    applets = subprocess.run([program, "--list"], check=True, capture_output=True, text=True)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:

        def add(
            name: str, kind: bytes, mode: int, *, data: bytes = b"", link: str = "", owner: int = 0
        ) -> None:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(data), link
            entry.uid = entry.gid = owner
            tar.addfile(entry, io.BytesIO(data))

        for name in ("bin", "dev", "etc", "home", "proc", "run", "sys", "usr", "usr/bin", "var"):
            add(name, tarfile.DIRTYPE, 0o755)
        add("tmp", tarfile.DIRTYPE, 0o1777)
        add("root", tarfile.DIRTYPE, 0o700)
        for name in ("home/user", "workspace"):
            add(name, tarfile.DIRTYPE, 0o755, owner=USER)
        add("bin/busybox", tarfile.REGTYPE, 0o755, data=Path(program).read_bytes())
        for applet in applets.stdout.split():
            if applet != "busybox":
                add(f"bin/{applet}", tarfile.SYMTYPE, 0o777, link="busybox")
        add("usr/bin/env", tarfile.SYMTYPE, 0o777, link="../../bin/env")
        people = {"root": 0, "user": USER, "nobody": 65534}
        passwd = "".join(f"{n}:x:{i}:{i}::/home/{n}:/bin/sh\n" for n, i in people.items())
        groups = "".join(f"{n}:x:{i}:\n" for n, i in people.items())
        for name, text in (
            ("passwd", passwd),
            ("group", groups),
            ("hosts", ""),
            ("resolv.conf", ""),
        ):
            add(f"etc/{name}", tarfile.REGTYPE, 0o644, data=text.encode())
    return stream.getvalue()


def request(host: str, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Send one request to an engine, whole answer back."""
    from tools.docker_engine import UnixHTTP

    connection = UnixHTTP(host.removeprefix("unix://"), 120)
    try:
        connection.request(method, path, body, {"Content-Type": "application/x-tar"})  # type: ignore[arg-type]
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as exc:
        raise OSError(f"{method} {path}: {exc!r}") from exc
    finally:
        connection.close()


def import_image(
    host: str,
    tag: str,
    tar: object,
    *,
    env: tuple[str, ...] = (),
    changes: tuple[str, ...] = (),
) -> str:
    """Import a tar as an image and return the image's id."""
    settings = [f"ENV {line}" for line in (f"PATH={SEARCH_PATH}", *env)] + list(changes)
    query = [("fromSrc", "-"), ("repo", REPOSITORY), ("tag", tag)]
    query += [("changes", setting) for setting in settings]
    status, answer = request(host, "POST", f"/images/create?{urlencode(query)}", tar)
    last = json.loads(answer.splitlines()[-1]) if answer.strip() else {}
    if status != 200 or "error" in last:
        raise OSError(f"the engine refuses to import {tag}: {status} {last}")
    return str(last["status"])


def load_busybox(host: str) -> None:
    """Load the busybox image."""
    import_image(host, "busybox", busybox_tar(), changes=('CMD ["/bin/sh"]',))


def load_debian(host: str) -> None:
    """Load the Debian image, if its tree has been fetched."""
    if debian_tar().exists():
        with debian_tar().open("rb") as tar:
            import_image(host, "debian", tar, env=("LANG=C.UTF-8",), changes=('CMD ["/bin/bash"]',))
    else:
        print(
            "docker_images: no Debian image: run python -m tools.docker_images fetch",
            file=sys.stderr,
        )


def load(host: str) -> None:
    """Load both images."""
    load_busybox(host)
    load_debian(host)


@contextlib.contextmanager
def borrowed(host: str) -> Iterator[None]:
    """Both images on somebody's engine, for a while; those that were there are left alone."""
    loaders = {f"{REPOSITORY}:busybox": load_busybox, f"{REPOSITORY}:debian": load_debian}
    ours = [name for name in loaders if request(host, "GET", f"/images/{name}/json")[0] != 200]
    try:
        for name in ours:
            loaders[name](host)
        yield
    finally:
        for name in ours:
            request(host, "DELETE", f"/images/{name}")


if __name__ == "__main__":
    if sys.argv[1:] == ["fetch"]:
        fetch()
    else:
        sys.exit(__doc__)
