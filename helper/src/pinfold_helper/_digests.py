"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "648910bec33f1e3ce19f89e1ceeacbd3e1c1c7da90b6c3e50d98b14379c02fa6",
    "x86_64": "97f39d99e7474156b1668d11e0d77d8d6a331400ca17cb5ba09060ff858535fd",
}
