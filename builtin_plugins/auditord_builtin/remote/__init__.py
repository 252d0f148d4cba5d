"""Sender ``remote``: ships the send-queue to an auditord or an AUDITOR elsewhere, over AUDITOR's wire contract."""

from collections.abc import Iterable
from typing import Any

from auditord_hookspecs import Deferred, SenderKind, hookimpl


@hookimpl
def auditord_senders() -> Iterable[Deferred[SenderKind[Any]]]:  # Any: of each kind's model
    """The kind ``remote``."""
    yield Deferred("remote", _remote)


def _remote() -> SenderKind[Any]:
    from auditord_builtin.remote.kinds import REMOTE  # noqa: PLC0415 when it is configured

    return REMOTE
