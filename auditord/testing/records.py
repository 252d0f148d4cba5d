"""A builder of records with a default for every part."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from auditord_hookspecs import Component, Record
from auditord_hookspecs.vocabulary import TOTALS

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The default start of the records of :func:`make_record`, and the initial time of the fake contexts."""


def make_record(
    record_id: str = "test-1",
    *,
    start: datetime = EPOCH,
    runtime: timedelta | None = timedelta(hours=1),
    cores: int = 1,
    components: Mapping[str, int] | None = None,
    **meta: str,
) -> Record:
    """Return a valid record.

    Args:
        record_id: its id.
        start: its start time (aware).
        runtime: its runtime; None leaves it open.
        cores: the amount of its component ``Cores``, unless ``components`` has ``CoreSeconds``.
        components: further amounts by component name.
        meta: one value per key, such as ``site_id="my-site"``.
    """
    amounts = {"Cores": cores, **(components or {})}
    if TOTALS["Cores"] in amounts:
        del amounts["Cores"]
    return Record(
        record_id=record_id,
        start_time=start,
        stop_time=None if runtime is None else start + runtime,
        components=tuple(Component(name, amount, ()) for name, amount in amounts.items()),
        meta={key: (value,) for key, value in meta.items()} or None,
    )
