"""Exports: a log, or a window of it, in one file of JSON Lines that proves itself.

The first line says what the file is; where it begins later than the log, it carries the state before, so that the
window can be opened. Each further line is an entry with its sequence, the server's timestamp and the chain after it. A
payload is written as the JSON that it is where reading that gives its very bytes again, otherwise in base64: the chain
covers every byte. Files whose names end in .gz or .xz are compressed.
"""

import base64
import binascii
import gzip
import lzma
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Final, cast

import msgspec

from muster.events.codec import is_too_deep
from muster.events.log import Entry
from muster.projections.fold import FOLD_VERSION, Fold, next_chain
from muster.projections.mirror import CHUNK, MirrorRow
from muster.projections.schema import HoleError, StoreError

EXPORT_VERSION: Final = 1
_MIB: Final = 1 << 20
_HEADER_MOST: Final = 128 * _MIB
_LINE_MOST: Final = 8 * _MIB  # a broker takes 2 MiB, and base64 makes a third more of it
_STATE_MOST: Final = 512 * _MIB


_Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Chain = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$(?!\n)")]


class ExportError(StoreError):
    """The file is no export, or not one that can be opened; the message says why."""


class Header(msgspec.Struct, frozen=True):
    """The first line. `chain` is the one before entry `first`; `state` the state there, as fold `fold_version` writes
    it, compressed and in base64 ("" = the log begins with this file)."""

    muster_export: int
    prefix: str
    first: _Whole
    last: _Whole
    chain: _Chain
    fold_version: int
    state: str = ""


class _Line(msgspec.Struct, gc=False):
    sequence: _Whole
    timestamp_ns: _Whole
    subject: str
    chain: str
    payload: msgspec.Raw = msgspec.Raw()
    payload_base64: str | None = None


_decode_line: Final = msgspec.json.Decoder(_Line).decode
_decode_header: Final = msgspec.json.Decoder(Header).decode
_encode: Final = msgspec.json.Encoder().encode


# -- writing ----------------------------------------------------------------------------------------------------


def header_of(before: Fold, prefix: str, last: int) -> Header:
    """The first line of an export of the entries after a fold, up to `last`."""
    state = before.cluster.state
    kept = base64.b64encode(zlib.compress(before.state_bytes())).decode() if state.sequence else ""
    return Header(EXPORT_VERSION, prefix, state.sequence + 1, last, state.chain.hex(), FOLD_VERSION, kept)


def header_line(header: Header) -> bytes:
    """The header as the file has it."""
    return _encode(header) + b"\n"


def entry_line(row: MirrorRow) -> bytes:
    """An entry as the file has it."""
    head = b'{"sequence":%d,"timestamp_ns":%d,"subject":%b,"chain":"%b",' % (
        row.sequence,
        row.timestamp_ns,
        _encode(row.subject),
        row.chain.hex().encode(),
    )
    line = head + b'"payload":' + row.payload + b"}\n"
    if _reads_back(line, row.payload):
        return line
    return head + b'"payload_base64":"' + base64.b64encode(row.payload) + b'"}\n'


def _reads_back(line: bytes, payload: bytes) -> bool:
    if b"\n" in payload or is_too_deep(payload):
        return False
    try:
        payload.decode()
        found = _decode_line(line)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return False
    return bytes(found.payload) == payload and found.payload_base64 is None


def with_chains(entries: Iterable[Entry], chain: bytes) -> Iterator[MirrorRow]:
    """Entries with their chains, from the chain before the first of them."""
    for entry in entries:
        chain = next_chain(chain, entry)
        yield MirrorRow(*entry, chain)


# -- reading ----------------------------------------------------------------------------------------------------


def opened(path: Path) -> BinaryIO:
    """An export's bytes, unpacked. Raises OSError."""
    if path.suffix.lower() == ".xz":
        return cast("BinaryIO", lzma.open(path, "rb"))
    if path.suffix.lower() == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    return path.open("rb")


class ExportSource:
    """An export as a source of rows, each as the file has it: whether they follow from each other is for the reader to
    check (an audit, or `checked_rows`). Raises ExportError where it is no export at all."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        lines = self._lines()
        try:
            _, line = next(lines, (1, b""))
            self.header: Final = _decode_header(line)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise ExportError(f"{path} cannot be read: {error}") from error
        except msgspec.MsgspecError as error:
            raise ExportError(f"{path} is no export: its first line is not such a file's") from error
        finally:
            lines.close()
        header = self.header
        if header.muster_export != EXPORT_VERSION:
            raise ExportError(f"{path} is of format {header.muster_export}; this program reads format {EXPORT_VERSION}")
        if not 1 <= header.first <= header.last + 1:
            raise ExportError(f"{path} says that it has entries {header.first} to {header.last}")

    @property
    def first(self) -> int:
        """The sequence of its first entry."""
        return self.header.first

    def position(self) -> int:
        """The sequence of its last entry, as its first line says."""
        return self.header.last

    def base(self) -> Fold:
        """The fold before its first entry. Raises ExportError where the file does not have it in this version."""
        header = self.header
        if header.first == 1:
            return Fold.empty()
        if header.fold_version != FOLD_VERSION:
            raise ExportError(
                f"{self.path} begins at entry {header.first} with a state of fold version {header.fold_version}, and"
                f" this program's is {FOLD_VERSION}: export the whole log (from entry 1), or open it with the program"
                " that wrote it"
            )
        try:
            fold = Fold.restore(_unpacked(base64.b64decode(header.state, validate=True)))
        except (binascii.Error, zlib.error, msgspec.MsgspecError) as error:
            raise ExportError(f"{self.path} is damaged: the state in its first line cannot be read") from error
        state = fold.cluster.state
        if state.sequence != header.first - 1 or state.chain.hex() != header.chain:
            raise ExportError(f"{self.path} is damaged: the state in its first line is not that before its first entry")
        return fold

    def rows(self, first: int, last: int) -> Iterator[list[MirrorRow]]:
        """Rows `first` to `last` in chunks, as they stand in the file. Raises HoleError at a line that is not the entry
        that is due there."""
        chunk: list[MirrorRow] = []
        due = self.header.first
        lines = self._lines()
        try:
            next(lines, None)
            for number, line in lines:
                if due > last and last < self.header.last:
                    break
                row = self._row(number, line, due)
                due += 1
                if first <= row.sequence <= last:
                    chunk.append(row)
                if len(chunk) >= CHUNK:
                    yield chunk
                    chunk = []
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            yield from [chunk] if chunk else []
            raise HoleError(f"{self.path.name} cannot be read on: {error}", due) from error
        except HoleError:
            yield from [chunk] if chunk else []
            raise
        finally:
            lines.close()
        yield from [chunk] if chunk else []
        if due <= last:
            raise HoleError(
                f"{self.path.name} ends before entry {due}, and says that it goes to {self.header.last}", due
            )

    def _row(self, number: int, line: bytes, due: int) -> MirrorRow:
        where = f"line {number} of {self.path.name}"
        if due > self.header.last:
            raise HoleError(f"{where} stands behind its last entry, {self.header.last}", due)
        if len(line) > _LINE_MOST:
            raise HoleError(f"{where}, where entry {due} is due, is no entry: it has over {_LINE_MOST} bytes", due)
        try:
            found = _decode_line(line)
            coded = found.payload_base64
            payload = bytes(found.payload) if coded is None else base64.b64decode(coded, validate=True)
            chain = bytes.fromhex(found.chain)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise HoleError(f"{where}, where entry {due} is due, is no entry: {error}", due) from error
        if found.sequence < due:
            raise HoleError(f"{where} has entry {found.sequence} again, where entry {due} is due", due)
        if found.sequence > due:
            raise HoleError(f"entry {due} is missing: {where} has entry {found.sequence}", due)
        return MirrorRow(found.sequence, found.timestamp_ns, found.subject, payload, chain)

    def _lines(self) -> Generator[tuple[int, bytes], None, None]:
        with opened(self.path) as file:
            number, most = 1, _HEADER_MOST
            while line := file.readline(most + 1):
                yield number, line
                number, most = number + 1, _LINE_MOST


def _unpacked(packed: bytes) -> bytes:
    """A state's bytes. Raises zlib.error."""
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(packed, _STATE_MOST)
    if not unpacker.eof:
        raise zlib.error(f"it ends too early, or has over {_STATE_MOST} bytes")
    return found


def checked_rows(source: ExportSource) -> Iterator[list[MirrorRow]]:
    """All rows of an export, each following from the one before. Raises HoleError, or ExportError that names the first
    entry that was changed."""
    chain = bytes.fromhex(source.header.chain)
    for rows in source.rows(source.first, source.position()):
        for row in rows:
            chain = next_chain(chain, row.entry)
            if row.chain != chain:
                raise ExportError(
                    f"entry {row.sequence} in {source.path.name} was changed: its chain is {row.chain.hex()}, and"
                    f" {chain.hex()} follows from what stands there"
                )
        yield rows
