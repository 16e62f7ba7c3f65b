"""Decoded TOML or JSON as a Struct; every problem names its field by a JSON pointer (RFC 6901)."""

import re
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from muster.events.policy import PERCENTAGE_PATTERN
from muster.events.spec import NAME_PATTERN, QUEUE_PATTERN, SIGNAL_PATTERN, VARIABLE_PATTERN

PERCENTAGE: Final = "a percentage from 0% to 100% with at most two decimals"
_LETTERS: Final = "lower-case letters, digits, - and _, not beginning with - or _, at most 63 characters"
_FORMS: Final = {
    NAME_PATTERN: f"a name is {_LETTERS}",
    QUEUE_PATTERN: f"a queue's name is its path: up to 8 names joined by /, each {_LETTERS}",
    SIGNAL_PATTERN: 'write the name of a signal, and behind @ how many seconds it gives: "USR2" or "USR2@120"',
    VARIABLE_PATTERN: "a variable's name is letters, digits and _, not beginning with a digit, at most 256 characters",
    PERCENTAGE_PATTERN: f'write {PERCENTAGE}, such as "50%" or "12.5%"',
}
"""What texts of a pattern are, in words."""
UNKNOWN_SHOWN: Final = 20
POINTER_LENGTH: Final = 256
T = TypeVar("T", bound=msgspec.Struct)


class Problem(NamedTuple):
    """What is wrong with one field."""

    pointer: str
    detail: str


class SpecError(Exception):
    """A specification that cannot be right."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{problem.pointer or '/'}: {problem.detail}" for problem in problems))
        self.problems = problems


_AT: Final = re.compile(r" - at `\$([^`]*)`$")
_KEY_AT: Final = re.compile(r" - at `key` in `\$([^`]*)`$")
_LENGTH: Final = re.compile(r"Expected `([a-z]+)[^`]*` of length ([<>])= ([0-9]+)")
_MISSING: Final = re.compile(r"Object missing required field `([^`]*)`")


def convert(raw: Any, kind: type[T]) -> T:
    """A decoded TOML or JSON value as a Struct. Raises SpecError, which names every unknown field."""
    problems: list[Problem] = []
    known = _known_part(raw, kind, "", problems)
    if len(problems) > UNKNOWN_SHOWN:
        problems[UNKNOWN_SHOWN:] = [Problem("", f"and {len(problems) - UNKNOWN_SHOWN} more unknown fields")]
    try:
        converted = msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        problems.append(_problem_of(error, kind))
    if problems:
        raise SpecError(problems)
    return converted


def _known_part(raw: Any, kind: Any, pointer: str, unknown: list[Problem]) -> Any:
    """`raw` without the fields that `kind` does not have; those are added to `unknown`."""
    kind = _plain(kind)
    if isinstance(raw, list) and get_origin(kind) is list:
        member = get_args(kind)[0]
        return [_known_part(value, member, f"{pointer}/{place}", unknown) for place, value in enumerate(raw)]
    if not isinstance(raw, dict) or not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return raw
    kinds = _fields(kind)
    known = {}
    for name, value in raw.items():
        place = f"{pointer}/{token(name)}"
        if name in kinds:
            known[name] = _known_part(value, kinds[name], place, unknown)
        else:
            unknown.append(Problem(place, f"unknown field; known here: {', '.join(sorted(kinds))}"))
    return known


def _plain(kind: Any) -> Any:
    """A type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def token(name: str) -> str:
    """A field's name within a pointer; one that is long beyond reason is cut."""
    return name[:POINTER_LENGTH].replace("~", "~0").replace("/", "~1")


def _problem_of(error: msgspec.ValidationError, kind: Any) -> Problem:
    """A decoder's complaint as a problem: the path as a pointer, and the words that would do."""
    text = str(error)
    where = _AT.search(text) or _KEY_AT.search(text)
    path = where[1] if where else ""
    steps = [step.strip("[].") for step in re.findall(r"\.[^.\[]+|\[[^\]]*\]", path)]
    pointer = "".join(f"/{step}" for step in steps if step)  # a map's member is not named: then the map is
    detail = text[: where.start()] if where else text
    if missing := _MISSING.search(detail):
        return Problem(f"{pointer}/{missing[1]}", "this field is required")
    if length := _LENGTH.match(detail):
        return Problem(pointer, _length_words(*length.groups()))
    for pattern, words in _FORMS.items():
        if repr(pattern) in detail:
            return Problem(pointer, words)
    if detail.startswith("Invalid enum value") and (known := _choices(_type_at(pointer, kind))):
        detail += f"; known here: {', '.join(known)}"
    return Problem(pointer, detail)


def _length_words(kind: str, sign: str, bound: str) -> str:
    if sign == ">" and bound == "1":
        return "this is empty"
    side, unit = "least" if sign == ">" else "most", "letters" if kind == "str" else "entries"
    return f"this must have at {side} {bound} {unit}"


def _type_at(pointer: str, kind: Any) -> Any:
    for step in pointer.split("/")[1:]:
        kind = _plain(kind)
        if get_origin(kind) is list:
            kind = get_args(kind)[0]
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            kind = _fields(kind).get(step)
    return kind


def _choices(kind: Any) -> list[str]:
    """The words that a type takes, wherever they stand in it."""
    if get_origin(kind) is Literal:
        return [word for word in get_args(kind) if isinstance(word, str)]
    return [word for part in get_args(kind) for word in _choices(part)]
