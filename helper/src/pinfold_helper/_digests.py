"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "3eb5efd69b88a2cdb00fd62a1d3f2c52c2b366e2704e9642a43f6f83692ec224",
    "x86_64": "d369ba111fcec877cddd1f6c5f4fcbe9aa7ea8e5c2775db24e214cf90366f707",
}
