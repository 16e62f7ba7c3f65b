"""Events to and from the payload of a message: JSON, one Struct per type, older versions upcast on read."""

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


_encoder: Final = msgspec.json.Encoder(order="deterministic")
_tag_decoder: Final = msgspec.json.Decoder(_Tag)
KNOWN_TAGS: Final = frozenset(str(kind.__struct_config__.tag) for kind in t.Event.__args__)

encode: Final = _encoder.encode
"""Event → payload bytes."""

decode_known: Final[Callable[[bytes], t.Event]] = msgspec.json.Decoder(t.Event).decode
"""Payload of the current version → event; raises msgspec.MsgspecError. The quick path of the fold."""


def decode(payload: bytes) -> t.Event:
    """Payload → event, upcast where it is older. Raises UnknownEventError or UnreadableEventError."""
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
    if tag in KNOWN_TAGS or not tag:
        raise UnreadableEventError(tag, str(error)) from None
    raise UnknownEventError(tag, f"unknown event type {tag!r}") from None
