"""Visitors of the page: what they may see, and what stands around their pages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from auditord.web.page.rendering import Navigation
from auditord.web.requests import principal_of
from auditord_hookspecs import Permission

_OVERVIEW: Final = ("/", "nav.overview", Permission.READ)
_OWN: Final = ("/my", "nav.my", Permission.READ)
_PAGES: Final = (
    _OVERVIEW,
    ("/usage", "nav.usage", Permission.READ),
    ("/jobs", "nav.jobs", Permission.READ),
    ("/operations", "nav.operations", Permission.OPERATE),
)


@dataclass(frozen=True, slots=True)
class Visitors:
    """Knows what a visitor may see.

    Args:
        text: of the catalogue.
    """

    text: Callable[[str], str]

    def navigation(self, request: web.BaseRequest, here: str) -> Navigation:
        """The pages that the sender of a request may see."""
        principal = principal_of(request)
        pages = _PAGES if principal is None or principal.user is None else (_OVERVIEW, _OWN, *_PAGES[1:])
        entries = [
            (path, self.text(key)) for path, key, permission in pages if principal is None or principal.may(permission)
        ]
        return Navigation(here, entries, None if principal is None else principal.name.partition(":")[2])


def may(request: web.BaseRequest, permission: Permission) -> bool:
    """Return whether the sender of a request has a permission; without authenticators, everybody has."""
    principal = principal_of(request)
    return principal is None or principal.may(permission)
