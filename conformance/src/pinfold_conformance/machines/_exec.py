"""The exec machine: commands with every trait at once, against what they must come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pinfold.spec import WORKSPACE
from pinfold_conformance._case import Case
from pinfold_conformance._expect import equal
from pinfold_conformance._trace import Step
from pinfold_conformance.machines._base import Choose, Machine

__all__ = ["ExecMachine"]

TEXTS = ("", "x", "line\n", "\0\xff", "no newline", "a\r\nb", "y" * 3000)
ARGS = ("", "plain", "two words", "$HOME", "'", '"', "*", "a\nb", "-n", "\\")


class ExecMachine(Machine):
    """The model is arithmetic: what was asked for is what comes back."""

    name: ClassVar[str] = "exec"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.log = b""

    async def reset(self) -> None:
        await self.case.site.lane.reset(self.case.inner)
        self.log = b""

    def choose(self, choose: Choose) -> Sequence[Step]:
        kind = choose.of([*["run"] * 8, "args", "args", "leak", "leak", "timeout"])
        if kind == "args":
            count = choose.number(0, 4)
            return [Step("args", {"args": [choose.of(ARGS) for _ in range(count)]})]
        if kind in ("timeout", "leak"):
            return [Step(kind, {"out": choose.of(TEXTS[:5])})]
        return [
            Step(
                "run",
                {
                    "out": choose.of(TEXTS),
                    "err": choose.of(TEXTS),
                    "exit": choose.of([0, 1, 2, 42, 124, 126, 127, 137, 255]),
                    "stdin": choose.of(TEXTS),
                    "cap": choose.of([1_000_000, 5, 0, 3000]),
                    "value": choose.of(ARGS),
                    "argv": choose.of([False, True]),
                },
            )
        ]

    async def apply(self, step: Step) -> None:
        args: Any = step.args
        d, case = self.case.dialect, self.case
        out = str(args.get("out", "")).encode("latin-1")
        match step.do:
            case "args":
                result = await case.run(*d.show_args(*args["args"]))
                expected = b"".join(arg.encode() + b"\0" for arg in args["args"])
                equal(result.stdout, expected, "arguments")
            case "timeout":
                result = await case.sh(d.out(out), d.sleep(20), timeout=0.2)
                found = (result.exit_code, result.timed_out, result.stdout)
                equal(found, (124, True, out), "a command beyond its timeout")
            case "leak":
                await case.sh(d.leak(), d.out(out))
                equal((await case.sh(d.leaked())).stdout, b"", "what a call leaves behind")
            case _:
                await self._run(args, out)

    async def _run(self, args: Any, out: bytes) -> None:
        d, case = self.case.dialect, self.case
        err, stdin = args["err"].encode("latin-1"), args["stdin"].encode("latin-1")
        script = d.seq(
            d.out(out), d.cat(), d.err(err), d.var("VALUE"), d.append("log", b"."),
            d.exit(args["exit"]),
        )  # fmt: skip
        request: dict[str, Any] = {
            "env": {"VALUE": args["value"]}, "stdin": stdin, "stdout_cap": args["cap"],
            "stderr_cap": args["cap"],
        }  # fmt: skip
        if args["argv"]:
            result = await case.run(*d.argv(script), **request)
        else:
            result = await case.sh(script, **request)
        self.log += b"."
        whole = out + stdin + args["value"].encode()
        equal(result.exit_code, args["exit"], "exit_code")
        equal(result.stdout, whole[: args["cap"]], "stdout")
        equal(result.stdout_total, len(whole), "stdout_total")
        equal(result.stderr, err[: args["cap"]], "stderr")
        equal(result.timed_out, False, "timed_out")

    async def audit(self) -> None:
        if self.log:
            found = await self.case.files.read(WORKSPACE / "log")
            equal(found, self.log, "how often commands ran")
