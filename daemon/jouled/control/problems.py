"""What a client is told when a request is not done: RFC 9457, with what to do and the CLI's exit code in it.

`type` is `urn:jouled:problem:KIND`; programs look at KIND, people at `detail` and `hint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from jouled.errors import JouledError
from jouled.state import Conflict, Unavailable

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:jouled:problem:"

# kind -> (status, title); docs/openapi.yaml lists the same ones
KINDS: Mapping[str, tuple[int, str]] = {
    "bad-http": (400, "This is not HTTP/1.1"),
    "bad-json": (400, "The body is not JSON"),
    "not-permitted": (403, "This user may not do that"),
    "looser-bound": (403, "The bound is looser than the configuration allows"),
    "no-such-path": (404, "There is no such path"),
    "no-such-job": (404, "There is no such job"),
    "no-such-method": (405, "The path knows no such method"),
    "conflict": (409, "Something else is going on"),
    "too-large": (413, "The body is too large"),
    "invalid": (422, "The request cannot be understood"),
    "no-bound": (422, "No bound is set anywhere"),
    "too-many-streams": (429, "Too many event streams are open"),
    "failed": (500, "jouled could not do it"),
    "board-fault": (500, "The board did not do what it was told"),
    "unavailable": (503, "Not available now"),
}


class Problem(Exception):
    """A request that is not done, as the client is told. Raised and answered within this package."""

    def __init__(self, kind: str, detail: str, *, hint: str = "", exit_code: int = 1, **more: Any) -> None:
        super().__init__(detail)
        self.kind = kind
        self.status, self.title = KINDS[kind]
        self.detail = detail
        self.hint = hint
        self.exit_code = exit_code
        self.more = more

    def as_json(self) -> dict[str, Any]:
        """The object of RFC 9457; `more` are extension members such as `job`, `key`, `wanted`, `got`."""
        return {
            "type": TYPE_PREFIX + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "hint": self.hint,
            "exit_code": self.exit_code,
            **self.more,
        }

    def response(self, headers: Mapping[str, str] | None = None) -> web.Response:
        """The answer."""
        body = msgspec.json.encode(self.as_json())
        return web.Response(status=self.status, body=body, content_type=CONTENT_TYPE, headers=headers)


# the exit code of an error that the client could have known better -> kind; of all others it is the board or us
_BY_EXIT_CODE = {2: "invalid", 6: "not-permitted", 8: "conflict", 10: "board-fault", 12: "conflict"}


def problem_of(error: JouledError) -> Problem:
    """What an error of the service is to a client."""
    kind = "unavailable" if isinstance(error, Unavailable) else _BY_EXIT_CODE.get(error.exit_code, "failed")
    more = {"job": (error.job or None) if isinstance(error, Conflict) else None} if kind == "conflict" else {}
    return Problem(kind, str(error), hint=error.hint, exit_code=error.exit_code, **more)


def http_problem(error: web.HTTPException) -> Problem:
    """What aiohttp's own refusals are to a client."""
    if error.status == 404:
        return Problem("no-such-path", "there is no such path", hint="docs/api.md lists the paths", exit_code=2)
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return Problem("no-such-method", f"wanted {allowed}, got {error.method[:20]}", exit_code=2)
    if error.status == 413:
        return too_large()
    if error.status < 500:
        return Problem("bad-http", error.text or error.reason, exit_code=2)
    return Problem("failed", error.reason)


def too_large() -> Problem:
    """A body that no request needs."""
    return Problem("too-large", "the body: wanted at most 16 KiB, got more", exit_code=2)
