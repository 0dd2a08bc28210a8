"""The format: canonical to the byte (CP-1), and deaf to lies (CP-8, SP-3)."""

import contextlib
import json
from hashlib import sha256

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinfold.checkpoint._codec import pack, unpack
from pinfold.checkpoint._manifest import Damaged, Draft, Newer, Subdirectory, decode
from pinfold.checkpoint._merkle import build
from pinfold.checkpoint._record import CheckpointRecord, decode_record, encode_record
from pinfold.checkpoint._upload import CHUNK, chunks_from
from pinfold.errors import InvalidArgument
from pinfold.provider import Entry, FileType

HEX = sha256(b"hello").hexdigest()
EMPTY = sha256(b"").hexdigest()


def encode(names, entries, below):
    draft = Draft()
    for name, entry in zip(names, entries, strict=True):
        draft.add(name, entry)
    return draft.close(below)


def file(path, size=5, digest=HEX, mode=0o644, mtime_ns=0):
    return Entry(
        path=path, type=FileType.FILE, mode=mode, size=size, digest=digest, mtime_ns=mtime_ns
    )


def folder(path, mode=0o755, mtime_ns=0):
    return Entry(path=path, type=FileType.DIRECTORY, mode=mode, mtime_ns=mtime_ns)


def link(path, text, mode=0o777):
    return Entry(path=path, type=FileType.SYMLINK, mode=mode, link=text)


def test_the_tree_digest_is_what_the_specification_says():
    """CP-1: written out by hand here, so that no change of the code can change it unseen."""
    entries = [
        file("b\n c", mtime_ns=5),
        folder("a", 0o700, mtime_ns=7),
        link("a/l", "../\udcff x"),
        file("a/\udcff", 0, EMPTY, 0o4755),
        file("a/é"),
    ]
    inner = (
        b"pinfold tree 1\n"
        b"l l\0../\xff x\0"
        b"f 644 5 " + HEX.encode() + b" \xc3\xa9\0"
        b"f 4755 0 " + EMPTY.encode() + b" \xff\0"
    )
    outer = (
        b"pinfold tree 1\n"
        b"d 700 " + sha256(inner).hexdigest().encode() + b" a\0"
        b"f 644 5 " + HEX.encode() + b" b\n c\0"
    )
    assert build(entries).root.digest == sha256(outer).hexdigest()
    assert build([]).root.digest == sha256(b"pinfold tree 1\n").hexdigest()


def test_times_and_links_modes_are_not_hashed():
    first = build([file("a", mtime_ns=1), link("l", "x", 0o777)]).root
    second = build([file("a", mtime_ns=2), link("l", "x", 0o755)]).root
    assert first.digest == second.digest
    assert first.object != second.object


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0")
    | st.sampled_from([chr(c) for c in (0xDC80, 0xDCC3, 0xDCA9, 0xDCFF)]),
    min_size=1,
    max_size=5,
).filter(lambda name: name not in (".", ".."))
TIMES = st.integers(-(9 * 10**18) + 1, 9 * 10**18 - 1)
MODES = st.integers(0, 0o7777)


@st.composite
def trees(draw, depth=3):
    """Listings of trees, parents first."""
    entries = []
    pending = [("", 0)]
    while pending:
        prefix, level = pending.pop()
        names = draw(
            st.lists(NAMES, max_size=4, unique_by=lambda n: n.encode("utf-8", "surrogateescape"))
        )
        for name in names:
            path, kind = prefix + name, draw(st.sampled_from("fdl"))
            if kind == "d" and level < depth:
                entries.append(folder(path, draw(MODES), draw(TIMES)))
                pending.append((path + "/", level + 1))
            elif kind == "l":
                entries.append(link(path, draw(NAMES | st.just("../../x")), 0o777))
            else:
                size = draw(st.integers(0, 10**17))
                digest = HEX if size else EMPTY
                entries.append(file(path, size, digest, draw(MODES), draw(TIMES)))
    return entries


def read_back(built):
    """All entries out of the manifests alone."""
    found, level = [], [("", built.root.object)]
    stored = {made.object: made.stored for made in built.directories.values()}
    while level:
        prefix, digest = level.pop()
        assert sha256(stored[digest]).hexdigest() == digest
        entries, below, _ = decode(stored[digest], prefix)
        folders = [e.path + "/" for e in entries if e.type is FileType.DIRECTORY]
        level += zip(folders, [b.object for b in below], strict=True)
        found += entries
    return found


@given(trees(), st.randoms())
def test_any_tree_is_read_back_as_it_was_and_order_does_not_matter(entries, chance):
    built = build(entries)
    assert sorted(read_back(built), key=lambda e: e.path) == sorted(entries, key=lambda e: e.path)
    shuffled = sorted(entries, key=lambda e: (e.path.count("/"), chance.random()))
    assert build(shuffled).directories == built.directories


@given(trees(), st.data())
def test_whatever_differs_in_the_tree_differs_in_the_digest(entries, data):
    if not entries:
        return
    index = data.draw(st.integers(0, len(entries) - 1))
    entry = entries[index]
    changes = {
        FileType.FILE: [
            {"size": entry.size + 1, "digest": HEX},
            {"digest": sha256(b"other").hexdigest(), "size": entry.size or 1},
            {"mode": entry.mode ^ 1},
        ],
        FileType.DIRECTORY: [{"mode": entry.mode ^ 0o1000}],
        FileType.SYMLINK: [{"link": (entry.link or "") + "x"}],
    }[entry.type]
    changed = attrs.evolve(entry, **data.draw(st.sampled_from(changes)))
    other = [*entries[:index], changed, *entries[index + 1 :]]
    assert build(other).root.digest != build(entries).root.digest


HOSTILE = {
    "absolute": [file("/etc/passwd")],
    "parent": [file("../x")],
    "parent-inside": [folder("a"), file("a/../x")],
    "dot": [file(".")],
    "dot-inside": [folder("a"), folder("a/.")],
    "dot-dot": [folder("..")],
    "empty": [file("")],
    "trailing-slash": [folder("a"), file("a/")],
    "double-slash": [folder("a"), file("a//b")],
    "no-parent": [file("a/b")],
    "late-parent": [file("a/b"), folder("a")],
    "link-as-parent": [link("a", "/etc"), file("a/passwd")],
    "file-as-parent": [file("a"), file("a/b")],
    "twice": [file("a"), file("a")],
    "file-and-folder": [file("a"), folder("a")],
    "folder-twice": [folder("a"), folder("a")],
    "twice-by-bytes": [file("é"), file("\udcc3\udca9")],
    "nul": [file("a\0b")],
    "nul-that-makes-two": [file(f"a\0f 644 5 {HEX} b")],
    "link-nul": [link("a", f"x\0f 644 5 {HEX} b")],
    "link-empty": [link("a", "")],
    "link-none": [Entry(path="a", type=FileType.SYMLINK, mode=0)],
    "link-surrogate": [link("a", "\ud800")],
    "surrogate": [file("\ud800")],
    "negative-size": [file("a", -1)],
    "absurd-size": [file("a", 10**18)],
    "absurd-mode": [file("a", mode=0o10000)],
    "negative-mode": [folder("a", -1)],
    "long-name": [file("a" * 1025)],
    "long-link": [link("a", "x" * 4097)],
    "short-digest": [file("a", digest="ab")],
    "upper-digest": [file("a", digest=HEX.upper())],
    "path-as-digest": [file("a", digest="../" * 21 + "x")],
    "digest-and-more": [file("a", digest=HEX + " b")],
    "empty-with-digest": [file("a", 0, HEX)],
    "full-without": [file("a", 5, EMPTY)],
    "device": [Entry(path="a", type=FileType.OTHER, mode=0)],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_listing_is_refused(name):
    """CP-8: a guest may list what it likes."""
    with pytest.raises(InvalidArgument, match="listing"):
        build(HOSTILE[name])


def test_an_absurd_time_is_no_reason_to_refuse():
    """Times are not part of the tree; a guest can set any."""
    (entry,) = read_back(build([file("a", mtime_ns=10**30)]))
    assert entry.mtime_ns == 9 * 10**18 - 1


def manifest(body, extra=b"0\n", header=b"pinfold tree 1\n", version=b"1", length=None):
    canonical = header + body
    size = len(canonical) if length is None else length
    return b"pinfold manifest %b %d\n%b%b" % (version, size, canonical, extra)


H = HEX.encode()
BAD_MANIFESTS = {
    "nothing": b"",
    "no-manifest": b"#!/bin/sh\n",
    "no-length": b"pinfold manifest 1\npinfold tree 1\n",
    "version-0": manifest(b"", b"", version=b"0"),
    "other-tree": manifest(b"", b"", header=b"pinfold tree 2\n"),
    "length-beyond": manifest(b"", b"", length=1000),
    "length-short": manifest(b"f 644 5 " + H + b" a\0", length=20),
    "slash": manifest(b"f 644 5 " + H + b" a/b\0"),
    "absolute": manifest(b"f 644 5 " + H + b" /a\0"),
    "parent": manifest(b"f 644 5 " + H + b" ..\0"),
    "dot": manifest(b"f 644 5 " + H + b" .\0"),
    "empty-name": manifest(b"f 644 5 " + H + b" \0"),
    "open-end": manifest(b"f 644 5 " + H + b" a"),
    "twice": manifest(b"f 644 5 " + H + b" a\0f 644 5 " + H + b" a\0", b"0\n0\n"),
    "unsorted": manifest(b"f 644 5 " + H + b" b\0f 644 5 " + H + b" a\0", b"0\n0\n"),
    "mode-zeros": manifest(b"f 0644 5 " + H + b" a\0"),
    "mode-large": manifest(b"f 17777 5 " + H + b" a\0"),
    "mode-not-octal": manifest(b"f 648 5 " + H + b" a\0"),
    "size-zeros": manifest(b"f 644 05 " + H + b" a\0"),
    "size-negative": manifest(b"f 644 -5 " + H + b" a\0"),
    "size-absurd": manifest(b"f 644 1" + b"0" * 18 + b" " + H + b" a\0"),
    "upper-digest": manifest(b"f 644 5 " + H.upper() + b" a\0"),
    "empty-digest": manifest(b"f 644 0 " + H + b" a\0"),
    "device": manifest(b"c 644 5 " + H + b" a\0"),
    "link-empty": manifest(b"l a\0\0"),
    "too-few-times": manifest(b"f 644 5 " + H + b" a\0", b""),
    "too-many-times": manifest(b"f 644 5 " + H + b" a\0", b"0\n0\n"),
    "time-plus": manifest(b"f 644 5 " + H + b" a\0", b"+1\n"),
    "time-absurd": manifest(b"f 644 5 " + H + b" a\0", b"9" * 19 + b"\n"),
    "time-not-ascii": manifest(b"f 644 5 " + H + b" a\0", "٣\n".encode()),
    "file-with-manifest": manifest(b"f 644 5 " + H + b" a\0", b"0 " + H + b"\n"),
    "folder-without": manifest(b"d 755 " + H + b" a\0", b"0\n"),
    "garbage-after": manifest(b"f 644 5 " + H + b" a\0", b"0\nx"),
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_a_hostile_manifest_is_refused(name):
    """CP-8."""
    with pytest.raises(Damaged):
        decode(BAD_MANIFESTS[name], "")


def test_a_later_version_is_refused_by_name():
    """SP-3."""
    with pytest.raises(Newer, match="version 2, this pinfold reads 1"):
        decode(b"pinfold manifest 2 whatever comes then", "")
    with pytest.raises(Newer, match="version 2"):
        decode(b"pinfold manifest 2\n", "")
    with pytest.raises(Newer, match="version 7"):
        chunks_from(b'{"version": 7, "size": 1, "chunks": []}', None)


@given(trees(depth=0), st.data())
def test_what_decodes_is_what_was_encoded(entries, data):
    """CP-8: no other bytes than those of `encode` pass for a manifest."""
    made = encode([e.path for e in entries], entries, [])
    spoiled = bytearray(made.stored)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(spoiled) - 1))
        action = data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
        if action == "flip":
            spoiled[place] ^= data.draw(st.integers(1, 255))
        elif action == "cut":
            del spoiled[place : place + data.draw(st.integers(1, 9))]
        elif action == "insert":
            spoiled[place:place] = data.draw(st.binary(min_size=1, max_size=9))
        else:
            spoiled[place:place] = spoiled[place : place + 9]
        if not spoiled:
            break
    try:
        read, below, digest = decode(bytes(spoiled), "")
    except (Damaged, Newer):
        return
    again = encode([e.path for e in read], read, below)
    assert again.stored == spoiled
    assert again.digest == digest


@given(st.binary(max_size=3000), st.data())
def test_a_damaged_frame_is_refused_or_as_it_was(content, data):
    packed = bytearray(pack(content))
    assert unpack(bytes(packed), len(content)) == content
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(Damaged):
        assert unpack(bytes(packed), len(content)) == content


def test_a_frame_is_never_more_than_it_may_be():
    """CP-8: a bomb is not unpacked."""
    bomb = pack(b"\0" * 10**8)
    assert len(bomb) < 20_000
    with pytest.raises(Damaged, match="claims"):
        unpack(bomb, 10**6)


RECORD = CheckpointRecord(
    checkpoint_id="cp_" + "0" * 32,
    sandbox_id="sbx_a",
    generation=3,
    created_ns=10**18,
    tree_digest=f"sha256:{HEX}",
    manifest=f"sha256:{HEX}",
    parent="cp_" + "1" * 32,
    entries=5,
    total_bytes=9,
    skipped=("a\udcff", "é\n"),
    unsettled=("x",),
)


def test_a_record_is_read_back():
    data = encode_record(RECORD)
    assert decode_record(data, sandbox="sbx_a", checkpoint_id=RECORD.checkpoint_id) == RECORD
    data.decode("ascii")
    assert json.loads(data)["version"] == 1


@given(st.data())
@example(data=None)
def test_a_damaged_record_is_refused(data):
    """CP-8: any byte of it, also a bit of the generation; and another one's is not this one's."""
    good = encode_record(RECORD)
    if data is None:
        with pytest.raises(Damaged):
            decode_record(good, sandbox="sbx_b", checkpoint_id=RECORD.checkpoint_id)
        with pytest.raises(Damaged):
            decode_record(good, sandbox="sbx_a", checkpoint_id="cp_" + "2" * 32)
        return
    spoiled = bytearray(good)
    place = data.draw(st.integers(0, len(spoiled) - 1))
    spoiled[place] ^= data.draw(st.integers(1, 255))
    try:
        read = decode_record(bytes(spoiled), sandbox="sbx_a", checkpoint_id=RECORD.checkpoint_id)
    except (Damaged, Newer):
        return
    assert read == RECORD  # white space


def sealed(**changes):
    from pinfold.checkpoint._record import _seal

    body = json.loads(encode_record(RECORD))
    del body["seal"]
    body |= changes
    body = {key: value for key, value in body.items() if value != "absent"}
    return json.dumps({**body, "seal": _seal(body)}).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": "3"},
        {"generation": True},
        {"entries": None},
        {"skipped": "x"},
        {"skipped": [1]},
        {"tree_digest": "sha256:../../x"},
        {"manifest": HEX},
        {"more": 1},
        {"parent": "absent"},
        {"generation": -1},
        {"entries": -1},
        {"total_bytes": 10**19},
        {"created_ns": 10**30},
        {"created_ns": -(10**30)},
        {"version": "1"},
        {"version": True},
    ],
    ids=str,
)
def test_a_malformed_record_is_refused(changes):
    with pytest.raises(Damaged):
        decode_record(sealed(**changes), sandbox="sbx_a", checkpoint_id=RECORD.checkpoint_id)


def test_a_later_record_is_refused_by_name():
    """SP-3."""
    with pytest.raises(Newer):
        decode_record(sealed(version=2, new=1), sandbox="sbx_a", checkpoint_id=RECORD.checkpoint_id)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"version": 1}',
        json.dumps(
            {"version": 1, "size": 9 * 2**20, "chunk_size": CHUNK, "chunks": [HEX]}
        ).encode(),
        json.dumps(
            {"version": 1, "size": 9 * 2**20, "chunk_size": 1, "chunks": [HEX] * 3}
        ).encode(),
        json.dumps(
            {"version": 1, "size": 9 * 2**20, "chunk_size": CHUNK, "chunks": ["../" * 21 + "x"] * 3}
        ).encode(),
        json.dumps(
            {"version": 1, "size": 9 * 2**20, "chunk_size": CHUNK, "chunks": [1, 2, 3]}
        ).encode(),
        json.dumps({"version": 1, "size": 5, "chunk_size": CHUNK, "chunks": [HEX]}).encode(),
    ],
    ids=range(10),
)
def test_a_hostile_list_of_chunks_is_refused(body):
    """CP-8."""
    with pytest.raises(Damaged):
        chunks_from(body, None)
    good = {"version": 1, "size": 9 * 2**20, "chunk_size": CHUNK, "chunks": [HEX] * 3}
    assert chunks_from(json.dumps(good).encode(), 9 * 2**20) == [HEX] * 3
    with pytest.raises(Damaged):
        chunks_from(json.dumps(good).encode(), 9 * 2**20 + 1)


def test_a_directory_names_its_children_in_order():
    children = [Subdirectory(HEX, EMPTY), Subdirectory(EMPTY, HEX)]
    made = encode(["b", "a"], [folder("b"), folder("a")], children)
    entries, below, _ = decode(made.stored, "")
    assert [e.path for e in entries] == ["a", "b"]
    assert below == children[::-1]
