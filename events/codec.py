"""Events to and from the payload of a message: JSON, one Struct per type, older versions upcast on read."""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from muster.events import types as t

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTS: Final[dict[str, Upcast]] = {}
"""Older tag → a function that gives the payload as the next version; the result names its new tag."""


class UnreadableEventError(Exception):
    """A payload that is no event of this version. `tag` is the type it claims ("" where it claims none)."""

    def __init__(self, tag: str, reason: str) -> None:
        super().__init__(reason)
        self.tag = tag


class UnknownEventError(UnreadableEventError):
    """A well-formed event of a type or version that this program does not know: it may follow, never lead."""


class _Tag(msgspec.Struct):
    type: str = ""


LONG_BYTES: Final = 256
"""A payload up to this size cannot be nested so deeply that a reader of it fails."""
TOO_DEEP: Final = "nested too deeply"
DEEPEST: Final = 64
"""Far more than any event has; far less than what any reader's stack holds, however full that is already."""
_TAG_FORM: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,63}\.[1-9][0-9]{0,3}")
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def is_too_deep(payload: bytes) -> bool:
    """Whether a payload nests more than any event does. Who folds asks this before decoding: at which depth a decoder
    gives up depends on its caller's stack, and every process must come to the same state."""
    if payload.count(b"[") + payload.count(b"{") <= DEEPEST:
        return False
    depth = 0
    for token in _BRACKETS.finditer(payload):
        if token[0] in b"[{":
            depth += 1
            if depth > DEEPEST:
                return True
        elif token[0] in b"]}":
            depth -= 1
    return False


_encoder: Final = msgspec.json.Encoder(order="deterministic")
_tag_decoder: Final = msgspec.json.Decoder(_Tag)
KNOWN_TAGS: Final = frozenset(str(kind.__struct_config__.tag) for kind in t.Event.__args__)

encode: Final = _encoder.encode
"""Event → payload bytes."""

decode_known: Final[Callable[[bytes], t.Event]] = msgspec.json.Decoder(t.Event).decode
"""Payload of the current version → event; raises msgspec.MsgspecError. The quick path of the fold."""


def decoder_of(kinds: Any) -> Callable[[bytes], Any]:
    """Payload of the current version → event of these types only; raises msgspec.MsgspecError."""
    return msgspec.json.Decoder(kinds).decode


def decode(payload: bytes) -> t.Event:
    """Payload → event, upcast where it is older. Raises UnknownEventError or UnreadableEventError."""
    if len(payload) > LONG_BYTES and is_too_deep(payload):
        raise UnreadableEventError("", TOO_DEEP)
    try:
        return decode_known(payload)
    except msgspec.MsgspecError as error:
        return _decode_otherwise(payload, error)


def _decode_otherwise(payload: bytes, error: msgspec.MsgspecError) -> t.Event:
    try:
        tag = _tag_decoder.decode(payload).type
    except msgspec.MsgspecError:
        raise UnreadableEventError("", str(error)) from None
    if tag in UPCASTS:
        raw = msgspec.json.decode(payload, type=dict[str, Any])
        while raw.get("type") in UPCASTS:
            raw = UPCASTS[raw["type"]](raw)
        try:
            event: t.Event = msgspec.convert(raw, t.Event)
        except msgspec.ValidationError as invalid:
            raise UnreadableEventError(tag, str(invalid)) from None
        return event
    if tag in KNOWN_TAGS or not _TAG_FORM.fullmatch(tag):
        raise UnreadableEventError(tag, str(error)) from None
    raise UnknownEventError(tag, f"unknown event type {tag!r}") from None
