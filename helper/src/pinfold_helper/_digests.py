"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "136f9fa99ee26e3dc13cdc581f87080871b6734826a53c869647cc011ebc5831",
    "x86_64": "b63e89cf8ca1341281eff9e45f690a44e7382715e37f504937d041b266f01379",
}
