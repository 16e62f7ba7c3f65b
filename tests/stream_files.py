"""The block files of a JetStream stream, read and written again with the checksums that its server expects: what
somebody does who can write to the broker's disk.

A record is its length (whose highest bit tells of headers), sequence, timestamp and length of the subject, little end
first; then subject, headers behind their length, payload, and HighwayHash-64 of all but the lengths.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import NamedTuple

_HEAD = Struct("<IQqH")
_LENGTH = Struct("<I")
_CHECKSUM_BYTES = 8
_HAS_HEADERS = 1 << 31
_MASK = (1 << 64) - 1


class Record(NamedTuple):
    """One message as it lies in a block."""

    sequence: int
    timestamp_ns: int
    subject: bytes
    headers: bytes
    payload: bytes


def folder_of(broker: Path, stream: str) -> Path:
    """Where a stream's files are."""
    [found] = broker.glob(f"**/streams/{stream}")
    return found


def read_blocks(folder: Path) -> dict[int, list[Record]]:
    """The records by block. Raises AssertionError where a checksum is not what it must be."""
    return {int(path.stem): _read(folder, path) for path in sorted((folder / "msgs").glob("*.blk"))}


def rewrite(folder: Path, change: Callable[[list[Record]], list[Record]]) -> None:
    """Change the records of the only block, with checksums that are right, and let the server make its index anew."""
    [(number, records)] = read_blocks(folder).items()
    data = b"".join(_encoded(folder, number, record) for record in change(records))
    (folder / "msgs" / f"{number}.blk").write_bytes(data)
    (folder / "msgs" / "index.db").unlink(missing_ok=True)


def _read(folder: Path, path: Path) -> list[Record]:
    data, place, records = path.read_bytes(), 0, []
    while place < len(data):
        length, sequence, timestamp_ns, subject_length = _HEAD.unpack_from(data, place)
        end = place + (length & ~_HAS_HEADERS) - _CHECKSUM_BYTES
        start = place + _HEAD.size
        subject, start = data[start : start + subject_length], start + subject_length
        headers = b""
        if length & _HAS_HEADERS:
            size = _LENGTH.unpack_from(data, start)[0]
            headers, start = data[start + 4 : start + 4 + size], start + 4 + size
        record = Record(sequence, timestamp_ns, subject, headers, data[start:end])
        assert _checksum(folder, int(path.stem), record) == data[end : end + _CHECKSUM_BYTES], record
        records.append(record)
        place = end + _CHECKSUM_BYTES
    return records


def _encoded(folder: Path, number: int, record: Record) -> bytes:
    headers = _LENGTH.pack(len(record.headers)) + record.headers if record.headers else b""
    length = _HEAD.size + len(record.subject) + len(headers) + len(record.payload) + _CHECKSUM_BYTES
    flag = _HAS_HEADERS if headers else 0
    head = _HEAD.pack(length | flag, record.sequence, record.timestamp_ns, len(record.subject))
    return head + record.subject + headers + record.payload + _checksum(folder, number, record)


def _checksum(folder: Path, number: int, record: Record) -> bytes:
    key = hashlib.sha256(f"{folder.name}-{number}".encode()).digest()
    place = _HEAD.pack(0, record.sequence, record.timestamp_ns, 0)[4:20]
    return highwayhash64(key, place + record.subject + record.headers + record.payload)


# -- HighwayHash-64 ---------------------------------------------------------------------------------------------

_MUL0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)


def highwayhash64(key: bytes, data: bytes) -> bytes:
    """HighwayHash-64 of `data` under a key of 32 bytes."""
    lanes = _words(key)
    state = _State(
        [mul ^ lane for mul, lane in zip(_MUL0, lanes, strict=True)],
        [mul ^ _swapped(lane) for mul, lane in zip(_MUL1, lanes, strict=True)],
        [*_MUL0],
        [*_MUL1],
    )
    whole = len(data) & ~31
    for start in range(0, whole, 32):
        state.update(_words(data[start : start + 32]))
    if whole < len(data):
        state.rest(data[whole:])
    return state.digest()


class _State:
    def __init__(self, v0: list[int], v1: list[int], mul0: list[int], mul1: list[int]) -> None:
        self.v0, self.v1, self.mul0, self.mul1 = v0, v1, mul0, mul1

    def update(self, lanes: list[int]) -> None:
        v0, v1, mul0, mul1 = self.v0, self.v1, self.mul0, self.mul1
        for i in range(4):
            v1[i] = (v1[i] + mul0[i] + lanes[i]) & _MASK
            mul0[i] ^= ((v1[i] & 0xFFFFFFFF) * (v0[i] >> 32)) & _MASK
            v0[i] = (v0[i] + mul1[i]) & _MASK
            mul1[i] ^= ((v0[i] & 0xFFFFFFFF) * (v1[i] >> 32)) & _MASK
        for source, target in ((v1, v0), (v0, v1)):
            for i in (0, 2):
                low, high = _zipped(source[i + 1], source[i])
                target[i] = (target[i] + low) & _MASK
                target[i + 1] = (target[i + 1] + high) & _MASK

    def rest(self, data: bytes) -> None:
        size = len(data)
        for i in range(4):
            self.v0[i] = (self.v0[i] + (size << 32) + size) & _MASK
            low, high = self.v1[i] & 0xFFFFFFFF, self.v1[i] >> 32
            self.v1[i] = _turned(low, size) | _turned(high, size) << 32
        whole, over = size & ~3, size & 3
        packet = bytearray(32)
        packet[:whole] = data[:whole]
        if size & 16:
            packet[28:32] = data[size - 4 : size]
        elif over:
            tail = data[whole:]
            packet[16:19] = bytes([tail[0], tail[over >> 1], tail[over - 1]])
        self.update(_words(bytes(packet)))

    def digest(self) -> bytes:
        for _ in range(4):
            self.update([_swapped(self.v0[i]) for i in (2, 3, 0, 1)])
        return ((self.v0[0] + self.v1[0] + self.mul0[0] + self.mul1[0]) & _MASK).to_bytes(8, "little")


def _words(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, 32, 8)]


def _swapped(lane: int) -> int:
    return lane >> 32 | (lane << 32) & _MASK


def _turned(half: int, count: int) -> int:
    return (half << count | half >> (32 - count)) & 0xFFFFFFFF


def _zipped(a: int, b: int) -> tuple[int, int]:
    low = ((b & 0xFF000000) | (a & 0xFF00000000)) >> 24 | ((b & 0xFF0000000000) | (a & 0xFF000000000000)) >> 16
    low |= (b & 0xFF0000) | (b & 0xFF00) << 32 | (a & 0xFF00000000000000) >> 8 | (b << 56) & _MASK
    high = ((a & 0xFF000000) | (b & 0xFF00000000)) >> 24 | (a & 0xFF0000) | (a & 0xFF0000000000) >> 16
    high |= (a & 0xFF00) << 24 | (b & 0xFF000000000000) >> 8 | (a & 0xFF) << 48 | (b & 0xFF00000000000000)
    return low, high
