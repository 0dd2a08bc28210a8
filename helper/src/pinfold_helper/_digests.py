"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "b0d6568e672314137926d51689ba9b80926e22e306fcc538ea5aade785b5af2f",
    "x86_64": "fac78ce3ef02fce7d41f09e4255c4da833b456e4db89af9b6224a4eb1bb5e1af",
}
