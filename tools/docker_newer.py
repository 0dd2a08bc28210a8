"""A newer Docker engine beside the machine's own, unpacked in the user's cache, never installed.

`python -m tools.docker_newer fetch` gets it, once, from the Debian archive by apt's own client, with
lists and a cache of its own. `python -m tools.docker_newer COMMAND...` runs a command with such an
engine, in a network namespace of its own (see tools.docker_engine). Needs root. Its runc is the
machine's: the newer one needs a newer C library.
"""

import os
import subprocess
import sys
from pathlib import Path

from tools import docker_engine, docker_images

RELEASE = "trixie"  # Docker 26.1
PACKAGES = ("docker.io", "containerd", "tini", "docker-compose")
COMPOSE = "usr/libexec/docker/cli-plugins/docker-compose"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def folder() -> Path:
    return docker_images.cache() / f"docker-{RELEASE}"


def fetch() -> None:
    """Download and unpack it, unless it is there."""
    root = folder()
    if (root / "usr/sbin/dockerd").exists() and (root / COMPOSE).exists():
        return
    apt = root / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    source = f"deb [signed-by={KEYRING}] {docker_images.mirror()} {RELEASE} main\n"
    (apt / "sources.list").write_text(source)
    options = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "root",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*command, "update"], check=True)
    subprocess.run([*command, "download", *PACKAGES], check=True, cwd=apt)
    for package in apt.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    for name in ("usr/bin/runc", "usr/sbin/runc"):
        (root / name).unlink(missing_ok=True)


def use() -> None:
    """Have every engine that this process and its children start be the newer one."""
    programs = folder() / "usr/bin"
    init = programs / "docker-init"  # where dockerd looks for it; another package's elsewhere
    if not init.exists():
        init.symlink_to("tini-static")
    plugin = folder() / "cli/cli-plugins/docker-compose"
    if not plugin.exists():
        plugin.parent.mkdir(parents=True, exist_ok=True)
        plugin.symlink_to(folder() / COMPOSE)
    os.environ["DOCKER_CONFIG"] = str(folder() / "cli")  # `docker compose`, for those who need it
    os.environ["PATH"] = f"{programs}:{folder()}/usr/sbin:{os.environ['PATH']}"


def main(command: list[str]) -> int:
    if command == ["fetch"]:
        fetch()
        return 0
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    use()
    docker_engine.leave_network()
    with docker_engine.throwaway() as engine:
        docker_images.load(engine.host)
        return subprocess.run(
            command, check=False, env=os.environ | {"DOCKER_HOST": engine.host}
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
