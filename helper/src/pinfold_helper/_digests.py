"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "f7e69631d15ab374e65cac929c5d289aaa97c76bf3e5d093f8080216c7115185",
    "x86_64": "0a46c5a30cb2ebe8c9614e54ace9fac33266095fc871c5f9459f1446cff18eb5",
}
