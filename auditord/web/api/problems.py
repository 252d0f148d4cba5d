"""Error answers of ``/api/v1``: RFC 9457, with the parameter at fault and what to do about it."""

from collections.abc import Collection
from http import HTTPStatus
from typing import Final

import msgspec

from auditord.web.answers import Answer
from auditord.web.dispatch import refuse_bare
from auditord_hookspecs import AuditordError

PROBLEM: Final = "application/problem+json"
PREFIX: Final = "/api/"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused (RFC 9457).

    Args:
        status: the answer's status.
        title: the status in words.
        detail: what happened.
        parameter: the part of the request that is at fault.
        remedy: what to do.
    """

    status: int
    title: str
    detail: str
    parameter: str | None = None
    remedy: str | None = None


class Refused(AuditordError):
    """A request that is answered with a :class:`Problem`.

    Args:
        status: of the answer.
        detail: what happened.
        parameter: the part of the request that is at fault.
        remedy: what to do.
    """

    def __init__(self, status: int, detail: str, *, parameter: str | None = None, remedy: str | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.problem = Problem(status, HTTPStatus(status).phrase, detail, parameter, remedy)

    def answer(self, *, close: bool = False) -> Answer:
        """What is sent; ``close`` where the rest of the request's body is not read."""
        return Answer(self.status, _encode(self.problem), PROBLEM, close=close)


def _encode(problem: Problem) -> bytes:
    return msgspec.json.encode(
        msgspec.structs.replace(
            problem, detail=_sendable(problem.detail), parameter=_sendable(problem.parameter) or None
        )
    )


def _sendable(text: str | None) -> str:
    """The text without lone surrogates, which a client may have sent and no JSON can carry."""
    return (text or "").encode("utf-8", "backslashreplace").decode()


def refuse(path: str, methods: Collection[str]) -> Answer:
    """The answer where no route takes a request: a problem under ``/api/``, AUDITOR's own answers elsewhere."""
    if not path.startswith(PREFIX):
        return refuse_bare(path, methods)
    if not methods:
        return Refused(404, "there is nothing at this path", remedy="see /openapi.json for what there is").answer()
    allowed = ", ".join(sorted(methods))
    problem = Refused(405, "the method is not taken here", remedy=f"use one of: {allowed}").problem
    return Answer(405, _encode(problem), PROBLEM, allow=allowed)
