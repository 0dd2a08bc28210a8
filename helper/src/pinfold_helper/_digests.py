"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "16d7320b5017d0a6c269b9aea0c986bab9c21b4ebc44b1f84c0f26f7ae8c4b7b",
    "x86_64": "26e82e7bd827da1507605dde8e98b5ed5f1d8576360e781abab289d6d7a8b400",
}
