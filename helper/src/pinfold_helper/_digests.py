"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "687d19b4d93c903efe702c95c96a3ba5853f9090a2078f895f921869be04c048",
    "x86_64": "df46cae6f32737ec71ba120a0d575aca72c29ed0cb48241f30319fc14b50ecfe",
}
