"""Send long reads to a streaming replica of the database while its lag is within the limit."""

import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import anyio
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from auditord.errors import SchemaMismatch, StoreUnavailable
from auditord.metrics import gauge
from auditord.store.protocol import Reads
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery

if TYPE_CHECKING:  # psycopg
    from auditord.store.postgres import PostgresRecordStore

_log: Final = logging.getLogger(__name__)

_BETWEEN_LOOKS: Final = 1.0
"""Seconds, which are included in every measured lag."""

_MOST_LOOKS: Final = 4_096
"""The maximum number of positions of the primary to remember until the replica has reached them."""


class Replica:
    """A replica and its lag.

    The lag is an upper bound: everything that was committed that many seconds ago is in the replica's answers. Each
    position of the primary is stored with the local time before the request, so the servers' clocks do not matter.

    Args:
        store: the store on the replica.
        primary: the store on the primary.
        where: the replica, for messages.
        most: the maximum lag for reads from the replica.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        store: "PostgresRecordStore",
        primary: "PostgresRecordStore",
        where: str,
        most: timedelta,
        clock: Callable[[], float],
    ) -> None:
        self.store: Final = store
        self.primary: Final = primary
        self._where = where
        self._most = most.total_seconds()
        self._clock = clock
        self._sent = deque[tuple[float, int]](maxlen=_MOST_LOOKS)
        self._includes: float | None = None
        self._was_near: bool | None = None

    @property
    def lag(self) -> float | None:
        """An upper bound of the lag in seconds, or None if it is unknown."""
        return None if self._includes is None else self._clock() - self._includes

    def is_near(self) -> bool:
        """Return whether the replica may answer reads."""
        return self.lag is not None and self.lag <= self._most

    def stop_using(self) -> None:
        """Stop reading from the replica until :meth:`look` finds it again."""
        self._includes = None

    async def watch(self) -> None:
        """Look at both servers every second, until cancelled."""
        while True:
            fault = ""
            try:
                await self.look()
            except (StoreUnavailable, SchemaMismatch) as error:
                fault = f": {error}"
            if self.is_near() != self._was_near:
                self._was_near = self.is_near()
                if self._was_near:
                    _log.info("the replica %s answers long reads", self._where)
                else:
                    lag = "unknown" if self.lag is None else f"{self.lag:.0f} s"
                    _log.warning("the replica %s is not used; its lag is %s%s", self._where, lag, fault)
            await anyio.sleep(_BETWEEN_LOOKS)

    async def look(self) -> None:
        """Ask both servers for their positions, and update the lag.

        Raises:
            StoreUnavailable: a server does not answer.
            SchemaMismatch: the second server is not a replica of the first.
        """
        asked = self._clock()
        primary = await self.primary.position()
        self._sent.append((asked, primary.reached))
        try:
            replica = await self.store.position()
        except StoreUnavailable:
            self.stop_using()
            raise
        if not replica.is_replica or replica.cluster != primary.cluster:
            self.stop_using()
            raise SchemaMismatch(
                "store.replica is not a streaming replica of the server of store.url"
                + ("" if replica.is_replica else "; it follows no other server (pg_is_in_recovery() is false)")
            )
        while self._sent and self._sent[0][1] <= replica.reached:
            self._includes, _ = self._sent.popleft()


class ReplicatedReads(Reads):
    """Reads lists and sums from the replica while its lag is small, and everything else from the store."""

    def __init__(self, store: Reads, replica: Replica) -> None:
        self._store = store
        self._replica = replica

    @override
    async def get(self, record_id: str) -> bytes | None:
        """Ask the store, since a client may want a record that it has just sent."""
        return await self._store.get(record_id)

    @asynccontextmanager
    @override
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """Ask the replica, unless the limit is 0 or 1: such a client may want a record that it has just sent."""
        async with AsyncExitStack() as stack:
            pages: AsyncIterator[Sequence[bytes]] | None = None
            if query.limit not in {0, 1} and self._replica.is_near():
                try:
                    pages = await stack.enter_async_context(self._replica.store.stream(query))
                except StoreUnavailable:
                    self._replica.stop_using()
            if pages is None:
                pages = await stack.enter_async_context(self._store.stream(query))
            yield pages

    @override
    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        if self._replica.is_near():
            try:
                return await self._replica.store.aggregate(query)
            except StoreUnavailable:
                self._replica.stop_using()
        return await self._store.aggregate(query)


class ReplicaMetrics(Collector):
    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def collect(self) -> Iterable[Metric]:
        """Yield the lag, without a value while it is unknown."""
        lag = self._replica.lag
        yield gauge(
            "auditord_replica_lag_seconds",
            "Upper bound of the lag of the record store's replica, which is used up to store.replica_max_lag.",
            (),
            () if lag is None else [((), lag)],
        )
