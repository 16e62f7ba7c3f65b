"""Query parameters and headers, checked: whatever cannot be understood is refused with its name."""

import re
from collections.abc import Collection
from typing import Final

from aiohttp import web

from muster.api.problems import ApiError, FieldError, bad_parameter, no_such

USER_HEADER: Final = "Muster-User"
KEY_HEADER: Final = "Idempotency-Key"
ANONYMOUS: Final = "anonymous"
UNKNOWN_SHOWN: Final = 20
ID_DIGITS: Final = 18
INDEX_DIGITS: Final = 6
_USER: Final = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}$")
_KEY: Final = re.compile(r"^[!-~]{1,255}$")
_INTEGER: Final = re.compile(r"^[0-9]{1,18}$")


def check_names(request: web.Request, known: Collection[str], timeless: str = "") -> None:
    """Refuse a query with parameters that are not `known`, or with one twice: a misspelt filter must not widen an
    answer. `timeless` says why there is no `at`."""
    unknown = [name[:128] for name in dict.fromkeys(request.query) if name not in known]
    if unknown:
        detail = f"known here: {', '.join(sorted(known)) or 'none'}"
        raise ApiError(
            400,
            "unknown_parameter",
            "no such parameter",
            detail=detail,
            errors=[
                FieldError(name, timeless if timeless and name == "at" else f"unknown parameter; {detail}")
                for name in unknown[:UNKNOWN_SHOWN]
            ],
        )
    for name in request.query:
        if len(request.query.getall(name)) > 1:
            raise bad_parameter(name, "it is given more than once")


def integer(request: web.Request, name: str, default: int, low: int, high: int = 10**18) -> int:
    """A whole number from `low` to `high`."""
    text = request.query.get(name)
    if text is None:
        return default
    if not _INTEGER.match(text) or not low <= int(text) <= high:
        raise bad_parameter(name, f"{text[:40]!r} is not a whole number from {low} to {high}")
    return int(text)


def names(request: web.Request, name: str) -> tuple[str, ...]:
    """The words of a list with commas; () where it is left out. One that is given and names nothing is refused: it
    must not stand for all."""
    text = request.query.get(name)
    found = tuple(dict.fromkeys(filter(None, map(str.strip, (text or "").split(",")))))
    if text is not None and not found:
        raise bad_parameter(name, "it names nothing")
    return found


def seconds(request: web.Request, name: str, default: float, high: float) -> float:
    """A number of seconds from 0 to `high`."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= high:
        raise bad_parameter(name, f"{text[:40]!r} is not a number of seconds from 0 to {high:g}")
    return value


def flag(request: web.Request, name: str) -> bool:
    """`1` or `true`, `0` or `false`; false where it is left out."""
    text = request.query.get(name, "0").lower()
    if text not in ("0", "1", "true", "false"):
        raise bad_parameter(name, f"{text[:40]!r} is neither 1 nor 0")
    return text in ("1", "true")


def job_id(request: web.Request) -> int:
    """The job in the path; the route's pattern lets digits through only. Raises ApiError."""
    digits = request.match_info["id"]
    if len(digits) > ID_DIGITS:
        raise no_such("job", digits[:40], "muster jobs lists the jobs")
    return int(digits)


def user_of(request: web.Request) -> str:
    """Who asks, as they say: a name for the record, no proof."""
    user = request.headers.get(USER_HEADER, ANONYMOUS)
    if not _USER.match(user):
        raise bad_parameter(USER_HEADER, "a user's name is 1 to 64 letters, digits and . _ @ -")
    return user


def key_of(request: web.Request) -> str:
    """The Idempotency-Key; "" where there is none."""
    key = request.headers.get(KEY_HEADER)
    if key is None:
        return ""
    if not _KEY.match(key):
        raise bad_parameter(KEY_HEADER, "a key is 1 to 255 printable ASCII characters without spaces")
    return key
