"""Visitors of the page: their navigation, and forms that are accepted only from the visitor they were made for."""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from auditord.web.access.sessions import Sessions
from auditord.web.bodies import BodyTooLarge
from auditord.web.page.rendering import Navigation
from auditord.web.problems import Refused
from auditord.web.requests import principal_of, read_body
from auditord_hookspecs import Permission

PROOF: Final = "proof"
"""The name of the form field that holds the proof."""

_KIND: Final = "application/x-www-form-urlencoded"
_LONGEST: Final = 1 << 18
_MOST_FIELDS: Final = 1_000

Form = Mapping[str, str]


class Forms(msgspec.Struct, frozen=True):
    """Makes and checks the proofs of forms.

    Args:
        sessions: the daemon's sessions; None if no authenticator is configured. Then no form is accepted.
    """

    sessions: Sessions | None

    def proof(self, request: web.BaseRequest) -> str:
        """Return a proof for the forms in the response to a request."""
        return "" if self.sessions is None else self.sessions.proof(self._owner(request))

    def require(self) -> None:
        """Raise unless forms are accepted at all.

        Raises:
            Refused: no authenticator is configured, so the page changes nothing.
        """
        if self.sessions is None:
            raise Refused(403, "the page acts where people log in: configure an authenticator, or use the command line")

    async def read(self, request: web.BaseRequest) -> Form:
        """Return the fields of a form after checking that it was made for this visitor.

        Raises:
            Refused: it was made for another visitor, is too old, or cannot be read.
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
    """Return the fields of a form; of a repeated field, the last value.

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


_OVERVIEW: Final = ("/", "nav.overview", Permission.READ)
_OWN: Final = ("/my", "nav.my", Permission.READ)
_PANELS: Final = ("/panels", "nav.panels", Permission.READ)
_PAGES: Final = (
    _OVERVIEW,
    ("/usage", "nav.usage", Permission.READ),
    ("/jobs", "nav.jobs", Permission.READ),
    _PANELS,
    ("/operations", "nav.operations", Permission.OPERATE),
)


class Visitors(msgspec.Struct, frozen=True):
    """Decides which pages each visitor sees.

    Args:
        has_panels: returns whether hook modules show any panel.
    """

    text: Callable[[str], str]
    forms: Forms
    has_panels: Callable[[], bool]

    def navigation(self, request: web.BaseRequest, here: str) -> Navigation:
        """Return the navigation for the sender of a request."""
        principal, sessions = principal_of(request), self.forms.sessions
        there = [each for each in _PAGES if each is not _PANELS or self.has_panels()]
        if principal is None:
            return Navigation(here, () if sessions is not None else [(path, self.text(key)) for path, key, _ in there])
        pages = there if principal.user is None else (_OVERVIEW, _OWN, *there[1:])
        entries = [(path, self.text(key)) for path, key, permission in pages if principal.may(permission)]
        has_session = sessions is not None and sessions.of(request) is not None
        name = principal.user or principal.name.partition(":")[2]
        return Navigation(
            here,
            entries,
            name,
            self.forms.proof(request),
            has_session,
            may_log_in=sessions is not None and not has_session,
        )


def may(request: web.BaseRequest, permission: Permission) -> bool:
    """Return whether the sender of a request has a permission. Without authenticators, everybody has."""
    principal = principal_of(request)
    return principal is None or principal.may(permission)
