"""SHA-256 of the programs; written by `_build.py --record`."""

DIGESTS = {
    "aarch64": "b7d525157b5810460209811bacfc0202c36f6e0bcffdd69fbae641b0f26d572c",
    "x86_64": "5d572fdda4ca403a2ecf6cba813d200c8d6a6e8a7cf93f60ff87f15c8f20db92",
}
