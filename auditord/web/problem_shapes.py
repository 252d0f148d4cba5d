"""The shapes of verdicts and problems, for the server and for clients."""

from typing import Annotated

import msgspec
from msgspec import Meta


def doc(text: str) -> Meta:
    """Return a description of a member for ``/openapi.json``. Docstrings would be lost with ``python -OO``."""
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
    record_id: Annotated[str | None, doc("the record's id, if it can be read.")] = None
    reason: Annotated[str | None, doc("why it was refused.")] = None


class Verdicts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcomes of posted records."""

    counts: Annotated[dict[str, int], doc("the number of records with each verdict.")]
    verdicts: Annotated[list[Verdict], doc("one for each listed record, in the order of the request.")]
    unlisted: Annotated[
        int,
        Meta(
            description="how many records are counted and not listed: of more than 10,000, those that were accepted, "
            "unless ``verdicts=all`` asks for them; and those beyond the longest list."
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
        doc("for posted records: the outcomes of those before the fault."),
    ] = None
