"""Verified fakes: what a check asks for does the same in the toy language and in a real shell."""

import subprocess

import pytest

from pinfold.provider import ExecRequest
from pinfold.spec import Limits
from pinfold_conformance.adapters.toy import EVERYTHING
from pinfold_conformance.dialects import How, Sh, Toy
from pinfold_conformance.machines._files import model_of

SCRIPTS = {
    "out": lambda d: d.out(bytes(range(256))),
    "err": lambda d: d.err(b"\xff\n"),
    "nothing": lambda d: d.out(b""),
    "fill": lambda d: d.fill(70_001),
    "fill-err": lambda d: d.fill(5, "stderr"),
    "exit": lambda d: d.exit(42),
    "exit-wraps": lambda d: d.exit(256),
    "die": lambda d: d.die(9),
    "die-term": lambda d: d.die(15),
    "cat": lambda d: d.cat(),
    "keep": lambda d: d.seq(d.keep("in"), d.load("in")),
    "save": lambda d: d.seq(d.save("f", b"\0x"), d.append("f", b"y"), d.load("f")),
    "load-missing": lambda d: d.seq(d.load("none"), d.out(b"on")),
    "exists": lambda d: d.exists("none"),
    "exists-yes": lambda d: d.seq(d.save("f", b""), d.exists("f")),
    "exists-dangling": lambda d: d.seq(d.link("l", "none"), d.exists("l")),
    "remove": lambda d: d.seq(d.mkdir("d/e"), d.remove("d"), d.exists("d")),
    "remove-missing": lambda d: d.remove("none"),
    "rename": lambda d: d.seq(d.save("a", b"1"), d.rename("a", "b"), d.load("b")),
    "hardlink": lambda d: d.seq(d.save("a", b"1"), d.hardlink("b", "a"), d.append("b", b"2"),
                                d.load("a")),
    "link": lambda d: d.seq(d.mkdir("d"), d.save("d/f", b"1"), d.link("l", "d"), d.load("l/f")),
    "fifo": lambda d: d.seq(d.fifo("p"), d.exists("p")),
    "var": lambda d: d.seq(d.var("GIVEN"), d.out(b"|"), d.var("MISSING")),
    "leak": lambda d: d.seq(d.mkdir("x"), d.leak(), d.leaked()),
    "leaked": lambda d: d.leaked(),
    "child": lambda d: d.seq(d.start(d.seq(d.out(b"in"), d.exit(3)), How.CHILD), d.out(b"after")),
    "child-code": lambda d: d.start(d.exit(3), How.CHILD),
    "sleep": lambda d: d.seq(d.sleep(0.05), d.out(b"x")),
    "wait": lambda d: d.seq(d.start(d.seq(d.sleep(0.05), d.save("go", b"")), How.QUIET),
                            d.wait_for("go"), d.out(b"went")),
    "unknown": lambda _: "no-such-command-1f3a",
    "unknown-goes-on": lambda d: d.seq("no-such-command-1f3a", d.out(b"on")),
    "odd-names": lambda d: d.seq(d.save("a b", b"1"), d.save("-n", b"2"), d.save("$(x)", b"3"),
                                 d.load("a b"), d.load("-n"), d.load("$(x)")),
    "not-a-tty": lambda d: d.is_tty(),
}  # fmt: skip


@pytest.fixture
def toy():
    return model_of(EVERYTHING, Limits())


def in_a_shell(dialect, script, tmp_path):
    done = subprocess.run(
        dialect.argv(script), cwd=tmp_path, input=b"stdin\n", capture_output=True, timeout=20,
        env={"PATH": "/usr/bin:/bin", "GIVEN": "a  b\n"}, check=False,
    )  # fmt: skip
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return code, done.stdout


@pytest.mark.anyio
@pytest.mark.parametrize("name", SCRIPTS)
async def test_both_dialects_do_the_same(name, toy, tmp_path):
    script = SCRIPTS[name]
    request = ExecRequest(shell=script(Toy()), stdin=b"stdin\n", env={"GIVEN": "a  b\n"})
    modelled = await toy.exec(request)
    code, stdout = in_a_shell(Sh(), script(Sh()), tmp_path)
    if name == "leak":  # which of the shell's own things are told is the shell's affair
        assert {b"variable", b"export", b"cwd"} <= set(modelled.stdout.split())
        assert {b"variable", b"export", b"cwd"} <= set(stdout.split())
        return
    if name == "not-a-tty":
        assert modelled.stdout.strip() == stdout.strip() == b"no tty"
        return
    assert (modelled.exit_code, modelled.stdout) == (code, stdout)


@pytest.mark.anyio
async def test_arguments_reach_both_exactly(toy, tmp_path):
    args = ["a b", "", "$HOME", "-n", "x\ny", "\udcff"]
    modelled = await toy.exec(ExecRequest(argv=Toy().show_args(*args)))
    argv = [arg.encode("utf-8", "surrogateescape") for arg in Sh().show_args(*args)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=True)
    assert modelled.stdout == done.stdout == b"a b\0\0$HOME\0-n\0x\ny\0\xff\0"


def test_only_its_own_shell_answers_a_dialects_probe(tmp_path):
    script, answer = Sh().probe
    assert in_a_shell(Sh(), script, tmp_path) == (0, answer)
    script, answer = Toy().probe
    assert in_a_shell(Sh(), script, tmp_path)[1] != answer
