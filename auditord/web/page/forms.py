"""Forms of the page: they are read only if the page made them for their sender."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from aiohttp import web

from auditord.web.access.sessions import Sessions
from auditord.web.bodies import BodyTooLarge
from auditord.web.problems import Refused
from auditord.web.requests import principal_of, read_body

PROOF: Final = "proof"
"""The field of a form with the proof."""

_KIND: Final = "application/x-www-form-urlencoded"
_LONGEST: Final = 1 << 18
_MOST_FIELDS: Final = 1_000

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Forms:
    """Makes proofs and checks them.

    Args:
        sessions: of the daemon; None where nobody is asked who they are, so that no form acts.
    """

    sessions: Sessions | None

    def proof(self, request: web.BaseRequest) -> str:
        """A proof for the forms of the answer to a request."""
        return "" if self.sessions is None else self.sessions.proof(self._owner(request))

    def require(self) -> None:
        """Return if forms act at all.

        Raises:
            Refused: nobody is asked who they are, so that the page changes nothing.
        """
        if self.sessions is None:
            raise Refused(403, "the page acts where people log in: configure an authenticator, or use the command line")

    async def read(self, request: web.BaseRequest) -> Form:
        """The fields of a form that the page made for the sender of the request.

        Raises:
            Refused: it did not, or it cannot be read.
        """
        fields = await read_fields(request)
        if self.sessions is None or not self.sessions.is_proof(fields.get(PROOF, ""), self._owner(request)):
            raise Refused(403, "this form was not made for you, or too long ago: load the page again, and repeat")
        return fields

    def _owner(self, request: web.BaseRequest) -> str:
        session = None if self.sessions is None else self.sessions.of(request)
        if session is not None:
            return f"session {session.session_id}"
        principal = principal_of(request)
        return "" if principal is None else f"principal {principal.name}"


async def read_fields(request: web.BaseRequest) -> Form:
    """The fields of a form; of a field that stands twice, the last.

    Raises:
        Refused: they cannot be read.
    """
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != _KIND:
        raise Refused(415, f"a form comes as {_KIND}")
    try:
        body = await read_body(request, _LONGEST)
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except (BodyTooLarge, ValueError) as error:
        raise Refused(400, f"this form cannot be read: {error}") from error
