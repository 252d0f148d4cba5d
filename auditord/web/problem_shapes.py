"""The shapes of verdicts and problems, for the server and for clients."""

from typing import Annotated

import msgspec
from msgspec import Meta


def doc(text: str) -> Meta:
    """Return a description of a member for ``/openapi.json``. Docstrings would be lost with ``python -OO``."""
    return Meta(description=text)


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one posted record."""

    position: Annotated[int, doc("the record's position in the request, from 0.")]
    verdict: Annotated[
        str,
        Meta(
            description="``added``; ``closed`` (the stored record was open); ``same`` (it was already stored); "
            "``different`` (the same run is stored with other content, which stays); ``queued`` (kept durably until "
            "the record store is available again); ``exists`` (refused: the id belongs to another run, or the server "
            "refuses all known ids); ``invalid`` (refused: it is not a valid record); ``forbidden`` (refused: the "
            "caller may not write it)."
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
            description="the number of records that are counted but not listed: of more than 10,000, the accepted "
            "ones, unless ``verdicts=all`` is given; and those beyond the longest list."
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
