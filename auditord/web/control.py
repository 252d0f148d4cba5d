"""The control socket: what acts on the daemon, for root and the daemon's own user only.

Head nodes have user shells, so nothing that acts is reachable over TCP. The socket lies in the state folder with mode
0600, and the kernel says who is at the other end.
"""

import os
import pwd
import socket
import struct
from typing import Final

from aiohttp import web

from auditord.web.api.problems import Refused
from auditord.web.dispatch import Handler

FILE: Final = "control.sock"

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid


def for_the_owner(handler: Handler) -> Handler:
    """The same handler for root and the daemon's own user; others are refused."""

    async def guarded(request: web.BaseRequest) -> web.StreamResponse:
        if _peer_uid(request) not in {0, os.geteuid()}:
            return Refused(403, "only root and the daemon's own user may use the control socket").answer()
        return await handler(request)

    return guarded


def peer_name(request: web.BaseRequest) -> str:
    """The user at the other end, by name where the system knows one."""
    uid = _peer_uid(request)
    try:
        return "somebody" if uid is None else pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _peer_uid(request: web.BaseRequest) -> int | None:
    peer = None if request.transport is None else request.transport.get_extra_info("socket")
    if peer is None:
        return None
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(credentials)[1]
    return uid
