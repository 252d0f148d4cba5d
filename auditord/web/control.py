"""The control socket: calls that act on the daemon, for root and the daemon's user only.

Head nodes have user shells, so calls that act are not available over TCP without authenticators. The socket is in the
state folder with mode 0600, and the kernel tells the user at the other end.
"""

import os
import pwd

from aiohttp import web

from auditord.web.access import audit
from auditord.web.access.credentials import unix_peer
from auditord.web.dispatch import Handler, Route
from auditord.web.problems import Refused


def for_the_owner(route: Route) -> Handler:
    """Wrap a route's handler so that only root and the daemon's user may call it."""

    async def guarded(request: web.BaseRequest) -> web.StreamResponse:
        peer = unix_peer(request)
        if peer is None or peer.uid not in {0, os.geteuid()}:
            audit.refused(request, f"control:{peer_name(request)}", "neither root nor the daemon's own user")
            return Refused(403, "only root and the daemon's own user may use the control socket").answer()
        if route.audited:
            audit.acting(request, f"control:{peer_name(request)}")
        return await route.handler(request)

    return guarded


def peer_name(request: web.BaseRequest) -> str:
    """Return the name of the user at the other end, or the user id."""
    peer = unix_peer(request)
    try:
        return "unknown" if peer is None else pwd.getpwuid(peer.uid).pw_name
    except KeyError:
        return f"uid {peer.uid}" if peer is not None else "unknown"
