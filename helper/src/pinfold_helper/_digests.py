"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "0d6a7d48ae680592c7fd9c7a2e995ec1e4ea42907792839495262c94e0755557",
    "x86_64": "293aa67d3e41d70e8faaec657b734c25c12928a26595c1102a8cca70a186e643",
}
