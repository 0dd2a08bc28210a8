"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "1c2861e304c28be51b842a7dcbad8c4413f1892e9d5a05def970e333c4099479",
    "x86_64": "877cd68b4cc127215e1118aceb23ee0b5a62a8b60aa8cdf811f5a2e845a47d77",
}
