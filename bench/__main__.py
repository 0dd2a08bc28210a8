"""`python -m bench [NAME...] [--json FILE]`: run the benchmarks and print their tables."""

from __future__ import annotations

import argparse
import importlib
import pkgutil

import bench
from bench.harness import write


def main() -> None:
    """Run the named benchmarks, or all."""
    names = sorted(
        module.name
        for module in pkgutil.iter_modules(bench.__path__)
        if not module.name.startswith("_") and module.name != "harness"
    )
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *names], help="; ".join(names))
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    results = []
    for name in args.names or names:
        results += importlib.import_module(f"bench.{name}").main()
    if args.json:
        write(args.json, results)


if __name__ == "__main__":
    main()
