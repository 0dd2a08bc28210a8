"""What the repository's files may and may not say."""

import re
import subprocess
from pathlib import Path

import pytest

# Spelled in parts, so that this file passes its own test.
REGISTRIES = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "deb." + "debian.org",
    "registry." + "npmjs.org",
    "registry-1." + "docker.io",
    "proxy." + "golang.org",
]


def machine_paths(root: Path) -> re.Pattern[bytes]:
    """Where the work tree, its neighbours and this user's files are: paths of two parts or more."""
    here = {path for path in (root, root.parent, Path.home()) if len(path.parts) > 2}
    outside = [rb"\.\./" + b"shared"]
    return re.compile(
        rb"(?<![\w.-])(?:%s)(?![\w-])" % b"|".join([*map(re.escape, map(bytes, here)), *outside])
    )


def found(tracked, pattern: re.Pattern[bytes], root) -> list[str]:
    return [
        f"{file.relative_to(root)}: {match.group().decode()}"
        for file in tracked
        for match in pattern.finditer(file.read_bytes())
    ]


def test_no_file_names_a_registry(tracked, root):
    hosts = re.compile("|".join(map(re.escape, REGISTRIES)).encode(), re.IGNORECASE)
    assert hosts.search(f"see https://{REGISTRIES[0]}/simple".encode())
    assert found(tracked, hosts, root) == []


def test_no_file_holds_the_path_of_a_machine(tracked, root):
    paths = machine_paths(root)
    assert paths.search(b"open('../" + b"shared/x')")
    made_up = machine_paths(Path("/srv/tree"))
    assert made_up.search(b"open('/srv/tree/x')")
    assert not made_up.search(b"/srv/treespaces/x some/srv/tree/x")
    assert found(tracked, paths, root) == []


def test_no_file_is_a_uv_lock_or_a_build_output(tracked):
    names = {file.name for file in tracked}
    assert "uv.lock" not in names
    assert not {file.suffix for file in tracked} & {".pyc", ".whl", ".egg-info"}


@pytest.mark.parametrize("name", ["uv.lock", ".venv/x", ".hypothesis/x", "core/dist/x", "a/b.pyc"])
def test_git_ignores_what_is_made(name, root):
    assert (
        subprocess.run(["git", "check-ignore", "-q", name], cwd=root, check=False).returncode == 0
    )


def test_the_scripts_are_executable_and_sound(root):
    for name, shell in ((".ci/run", "bash"), ("tools/setup-system", "sh")):
        script = root / name
        assert script.stat().st_mode & 0o111, name
        subprocess.run([shell, "-n", script], check=True)
