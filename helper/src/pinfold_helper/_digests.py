"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "ba672bcf6459ed6b857c00fc6274fb99e6564347f6cf8468f665083c42e08823",
    "x86_64": "dab3b9de6359cc400337bc792c2c90b90525c2b0991f06bc9914525f3c90da09",
}
