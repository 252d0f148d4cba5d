"""Visitors of the page: what they may see, and what stands around their pages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from auditord.web.page.forms import Forms
from auditord.web.page.rendering import Navigation
from auditord.web.requests import principal_of
from auditord_hookspecs import Permission

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


@dataclass(frozen=True, slots=True)
class Visitors:
    """Knows what a visitor may see.

    Args:
        text: of the catalogue.
        forms: proves to whom they were given.
        has_panels: tells if hook modules show anything.
    """

    text: Callable[[str], str]
    forms: Forms
    has_panels: Callable[[], bool]

    def navigation(self, request: web.BaseRequest, here: str) -> Navigation:
        """The pages that the sender of a request may see."""
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
    """Return whether the sender of a request has a permission; without authenticators, everybody has."""
    principal = principal_of(request)
    return principal is None or principal.may(permission)
