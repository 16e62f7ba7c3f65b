"""RFC 9457 problems: every refusal names what was wrong, where, and what to do next.

A handler raises `ApiError`; the middleware in `muster.api.http` writes it as `application/problem+json`.
"""

from typing import Final

import msgspec

PROBLEM_TYPE: Final = "application/problem+json"


class FieldError(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request: a JSON pointer into the body, or the parameter's name."""

    pointer: str
    detail: str


class ProblemView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every answer that is an error. `code` is stable and meant for programs."""

    title: str
    status: int
    code: str
    detail: str = ""
    next_step: str = ""
    errors: list[FieldError] = []
    type: str = "about:blank"


class ApiError(Exception):
    """An error for the caller. `retry_after_s` is sent as Retry-After where it is not 0."""

    def __init__(
        self,
        status: int,
        code: str,
        title: str,
        *,
        detail: str = "",
        next_step: str = "",
        errors: list[FieldError] | None = None,
        retry_after_s: int = 0,
    ) -> None:
        super().__init__(f"{title}: {detail}" if detail else title)
        self.view = ProblemView(
            title=title, status=status, code=code, detail=detail, next_step=next_step, errors=errors or []
        )
        self.retry_after_s = retry_after_s


def bad_parameter(name: str, detail: str, next_step: str = "") -> ApiError:
    """A query parameter or header that cannot be understood."""
    return ApiError(
        400, "bad_parameter", f"{name} is wrong", detail=detail, next_step=next_step, errors=[FieldError(name, detail)]
    )


def no_such(kind: str, name: object, next_step: str) -> ApiError:
    """A job, node or path that is not there."""
    return ApiError(404, "not_found", f"no {kind} {name}", next_step=next_step)
