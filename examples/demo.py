"""A real job from nothing to its outcome: `make demo`, or `python examples/demo.py [FOLDER]`.

A table of the chemical elements is processed by a shell script in a bashkit sandbox. The sandbox
is shown before anything runs in it, and its outcome is copied out to FOLDER (build/demo). Then a
durable sandbox on this machine loses its folder, and comes back with its files.
"""

import json
import shutil
import sys
import time
from pathlib import Path, PurePosixPath

from pinfold import Store, blocking

HERE = Path(__file__).parent
INPUTS = (HERE / "elements" / "elements.csv", HERE / "elements" / "report.sh")
WORKSPACE = PurePosixPath("/workspace")
SPEC = {"target": {"kind": "vfs", "provider": "bashkit"}}
DURABLE = {"target": {"kind": "host", "provider": "host"}, "durability": "checkpointed"}


def main(folder: Path) -> int:
    """Show both, and return the exit code."""
    return run_job(folder) or come_back(folder)


def run_job(folder: Path) -> int:
    """Run the job and return its exit code."""
    began = time.perf_counter()
    with blocking.open(SPEC, name="demo") as box:
        print("The sandbox, before anything runs in it:")
        print(json.dumps(box.environment().to_dict(), indent=2))

        for source in INPUTS:
            box.files.write(WORKSPACE / source.name, source.read_bytes())
            print(f"uploaded    {source.name} ({source.stat().st_size} bytes)")

        argv = ["bash", "report.sh"]
        print(f"running     {' '.join(argv)}\n")
        result = box.exec(argv)
        print(result.stdout_text, end="")
        print(result.stderr_text, end="", file=sys.stderr)
        print(f"\nexit code   {result.exit_code}")
        print(f"time        {result.duration_ms} ms in the sandbox")
        if result.exit_code != 0:
            return result.exit_code

        folder.mkdir(parents=True, exist_ok=True)
        outcome = folder / "report.json"
        outcome.write_bytes(box.files.read(WORKSPACE / "report.json"))
    print(f"            {(time.perf_counter() - began) * 1000:.0f} ms in all")
    print(f"outcome     {outcome}")
    print(outcome.read_text(), end="")
    return 0


def come_back(folder: Path) -> int:
    """Lose a sandbox's folder, and run the next command all the same."""
    print("\nA durable sandbox on this machine:")
    store = Store(folder / "store")
    with blocking.open(DURABLE, store=store) as box:
        outcome = (folder / "report.json").read_bytes()
        box.files.write(WORKSPACE / "report.json", outcome)
        view = box.view()
        print(f"wrote       report.json, kept as {view.current_checkpoint_id}")

        place = Path(box.exec(shell="pwd -P").stdout_text.rstrip("\n"))
        shutil.rmtree(place)
        print(f"deleted     {place}, from outside")

        result = box.exec(["cat", "report.json"])
        print(f"exit code   {result.exit_code}")
        print(f"same file   {'yes' if result.stdout == outcome else 'no'}")
        print(f"generation  {view.generation}, then {result.generation}")
        for event in box.events():
            print(f"            {event.type}")
        box.delete()
    return 0 if result.stdout == outcome else 1


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(main(Path(given[0]) if given else HERE.parent / "build" / "demo"))
