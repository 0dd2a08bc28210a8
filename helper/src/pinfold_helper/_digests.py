"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "0e2bbadeee0ce7901ae27300b5d4b305e311a103999375bef4c9f302a07f7390",
    "x86_64": "d387e40e1647bee78dc53657d3dc6b77892532849ccf41ea2ef4e52dacfdeaff",
}
