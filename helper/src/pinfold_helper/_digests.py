"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "64f94237b5d767c5dd4740e47aca5c21c09ff7dfbab280c2b07f30fade95fa6b",
    "x86_64": "c6204410f5ad1600e48b5eef6102a83bd3954f6692cb355a61ded3fc970a2826",
}
