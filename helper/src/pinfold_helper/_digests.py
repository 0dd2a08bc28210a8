"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "713ee86aeeccd344da677ab47e83b1d0e3616056393e91589965b8825a6ad969",
    "x86_64": "9bf57353787de28e7be19df4df808240457a75572bc66e3055b985ef3f3ac69b",
}
