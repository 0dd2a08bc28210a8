"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "9c2dfc72043a85709f1219ba500a47b9ba6727bd3a55cee736a85cf52d400fa6",
    "x86_64": "aeb3a22ca32f3c73f49e60ed52beef68ecdab6e7b3a22acbd6fde266baf948a0",
}
