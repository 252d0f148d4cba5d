"""Error answers of ``/api/v1``: RFC 9457, with the parameter at fault and what to do about it."""

from collections.abc import Collection
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from auditord.web.answers import Answer, sendable
from auditord.web.dispatch import refuse_bare
from auditord_hookspecs import AuditordError

PROBLEM: Final = "application/problem+json"
PREFIX: Final = "/api/"


def doc(text: str) -> Meta:
    """Describe a member in ``/openapi.json``; a docstring is gone with ``python -OO``."""
    return Meta(description=text)


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one posted record."""

    position: Annotated[int, doc("in the request, from 0.")]
    verdict: Annotated[
        str,
        Meta(
            description="``added``; ``closed`` (it was open); ``same`` (it was there); ``different`` (the same run was "
            "there with other content, which stays); ``queued`` (kept durably until the record store is "
            "back); ``exists`` (refused: the id belongs to another run); ``invalid`` (refused: it is no "
            "record); ``forbidden`` (refused: it is not the sender's to write)."
        ),
    ]
    record_id: Annotated[str | None, doc("whose record it is, as far as that can be read.")] = None
    reason: Annotated[str | None, doc("why it was refused.")] = None


class Verdicts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcomes of posted records."""

    counts: Annotated[dict[str, int], doc("how many records there are of each verdict.")]
    verdicts: Annotated[list[Verdict], doc("one for each record that is listed, in the order of the request.")]
    unlisted: Annotated[
        int,
        Meta(
            description="how many records are counted and not listed: of more than 10,000, those that were accepted, "
            "unless ``verdicts=all`` asks for them; and what is beyond the longest list."
        ),
    ] = 0


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused (RFC 9457)."""

    status: Annotated[int, doc("the answer's status.")]
    title: Annotated[str, doc("the status in words.")]
    detail: Annotated[str, doc("what happened.")]
    parameter: Annotated[str | None, doc("the part of the request that is at fault.")] = None
    remedy: Annotated[str | None, doc("what to do.")] = None
    handled: Annotated[
        Verdicts | None,
        doc("of records that were posted: what became of the first of them until something went wrong."),
    ] = None


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


def refuse(path: str, methods: Collection[str]) -> Answer:
    """The answer where no route takes a request: a problem under ``/api/``, AUDITOR's own answers elsewhere."""
    if not path.startswith(PREFIX):
        return refuse_bare(path, methods)
    if not methods:
        return Refused(404, "there is nothing at this path", remedy="see /openapi.json for what there is").answer()
    allowed = ", ".join(sorted(methods))
    return Refused(405, "the method is not taken here", remedy=f"use one of: {allowed}", allow=allowed).answer()
