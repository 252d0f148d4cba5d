"""Error responses of ``/api/v1``: RFC 9457, with the parameter at fault and a remedy."""

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
        status: the status of the response.
        detail: what happened.
        parameter: the part of the request at fault.
        remedy: what to do.
        handled: the verdicts of records that were handled before the error.
        allow: the allowed methods, for a 405.
        challenge: the authentication challenge, for a 401.

    Remedy:
        see the member `remedy` of the answer; the texts are below, by status.
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
        body = msgspec.json.encode(self.problem)
        return Answer(self.problem.status, body, PROBLEM, allow=self._allow, challenge=self._challenge)


def refuse(path: str, methods: Collection[str]) -> Answer:
    """Return the answer to a request without a route: 404, or 405 if the path has other methods.

    Below ``/api/`` the answer is a problem, elsewhere AUDITOR's.
    """
    allowed = ", ".join(sorted(methods))
    if not path.startswith(PREFIX):
        return Answer(405, allow=allowed) if methods else NOT_FOUND
    if not methods:
        return Refused(404, "there is nothing at this path", remedy="see /openapi.json for the existing paths").answer()
    return Refused(405, "this path does not accept the method", remedy=f"use one of: {allowed}", allow=allowed).answer()
