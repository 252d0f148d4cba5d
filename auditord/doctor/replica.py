"""Check the replica of the record store."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final

import anyio

from auditord.config.model import StoreSection
from auditord.errors import SchemaMismatch, StoreUnavailable
from auditord.store.opening import open_replica, open_store_for_reading
from auditord.store.replica import Replica
from auditord_hookspecs.checks import Finding, Severity

_BETWEEN_LOOKS: Final = 0.1
"""Seconds, which are part of the lag that is found."""

_LONGEST: Final = timedelta(minutes=1)
"""A replica that is further behind is not waited for."""


async def check_replica(section: StoreSection) -> AsyncGenerator[Finding, None]:
    """See that it answers, follows the database, and how far it is behind."""
    if section.replica is None:
        return
    subject, remedy = (
        "replica",
        "repair its replication (pg_stat_replication on that server); store.url answers meanwhile",
    )
    try:
        async with open_store_for_reading(section) as primary, open_replica(section, primary) as replica:
            lag = await _lag(replica, min(section.replica_max_lag, _LONGEST))
    except SchemaMismatch as error:
        yield Finding(
            Severity.FAILURE, subject, str(error), "set a standby of store.url's server, or remove store.replica"
        )
    except StoreUnavailable as error:
        text = "check both servers and store.replica; store.url answers long reads meanwhile"
        yield Finding(Severity.WARNING, subject, str(error), text)
    else:
        if lag is None:
            text = f"it is more than {min(section.replica_max_lag, _LONGEST).total_seconds():g} s behind"
            yield Finding(Severity.WARNING, subject, text, remedy)
        else:
            yield Finding(Severity.OK, subject, f"a standby of the database, {lag:.1f} s behind at most")


async def _lag(replica: Replica, patience: timedelta) -> float | None:
    """Return an upper bound of the lag in seconds; None if the replica has not reached the first position."""
    with anyio.move_on_after(patience.total_seconds()):
        while replica.lag is None:
            await replica.look()
            await anyio.sleep(_BETWEEN_LOOKS)
    return replica.lag
