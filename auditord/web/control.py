"""The control socket: what acts on the daemon, for root and the daemon's own user only.

Head nodes have user shells, so nothing that acts is reachable over TCP. The socket lies in the state folder with mode
0600, and the kernel says who is at the other end.
"""

import os
import pwd

from aiohttp import web

from auditord.web.access import audit
from auditord.web.access.credentials import unix_peer
from auditord.web.dispatch import Handler, Route
from auditord.web.problems import Refused


def for_the_owner(route: Route) -> Handler:
    """The route's handler for root and the daemon's own user; others are refused."""

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
    """The user at the other end, by name where the system knows one."""
    peer = unix_peer(request)
    try:
        return "unknown" if peer is None else pwd.getpwuid(peer.uid).pw_name
    except KeyError:
        return f"uid {peer.uid}" if peer is not None else "unknown"
