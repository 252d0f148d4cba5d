"""Error answers of ``/api/v1``: RFC 9457, with the parameter at fault and what to do about it."""

from collections.abc import Collection
from http import HTTPStatus
from typing import Final

import msgspec

from auditord.web.answers import NOT_FOUND, Answer, sendable
from auditord.web.problem_shapes import Problem, Verdicts
from auditord_hookspecs import AuditordError

PROBLEM: Final = "application/problem+json"
PREFIX: Final = "/api/"


class Refused(AuditordError):
    """A request that is answered with a :class:`Problem`.

    Args:
        status: of the answer.
        detail: what happened.
        parameter: the part of the request that is at fault.
        remedy: what to do.
        handled: what had been done by then.
        allow: the methods that a 405 names.
        challenge: how a 401 says that one proves who one is.

    Remedy:
        the member `remedy` of the answer says what to do; the texts are below, by status.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        parameter: str | None = None,
        remedy: str | None = None,
        handled: Verdicts | None = None,
        allow: str | None = None,
        challenge: str | None = None,
    ) -> None:
        super().__init__(detail)
        self._allow, self._challenge = allow, challenge
        name = None if parameter is None else sendable(parameter)
        self.problem = Problem(status, HTTPStatus(status).phrase, sendable(detail), name, remedy, handled)

    def answer(self) -> Answer:
        """The answer to send."""
        body = msgspec.json.encode(self.problem)
        return Answer(self.problem.status, body, PROBLEM, allow=self._allow, challenge=self._challenge)


def refuse_bare(_path: str, methods: Collection[str]) -> Answer:
    """As AUDITOR answers a request that no route takes: 404 or, where other methods are taken, 405."""
    return Answer(405, allow=", ".join(sorted(methods))) if methods else NOT_FOUND


def refuse(path: str, methods: Collection[str]) -> Answer:
    """The answer where no route takes a request: a problem under ``/api/``, AUDITOR's own answers elsewhere."""
    if not path.startswith(PREFIX):
        return refuse_bare(path, methods)
    if not methods:
        return Refused(404, "there is nothing at this path", remedy="see /openapi.json for what there is").answer()
    allowed = ", ".join(sorted(methods))
    return Refused(405, "the method is not taken here", remedy=f"use one of: {allowed}", allow=allowed).answer()
