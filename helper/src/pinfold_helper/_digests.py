"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "ea45161a45eb4dca99632491a8107899dade73855f78395cee6140f97cb09bd6",
    "x86_64": "e0fb9fb33cc7238f6d5c1fbf1e9fdb7599f0cae50aba90126f718b3074ad18cd",
}
