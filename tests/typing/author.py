"""A collector as an author writes it is accepted, what would fail at run time is not; checked, never run."""

from collections.abc import AsyncIterator, Iterable

from auditord_hookspecs import Batch, CollectorContext, CollectorKind, InstanceConfig, Record, RunConfig, hookimpl


class PagesConfig(RunConfig):
    path: str


async def collect(config: PagesConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    yield Batch(records=[Record(record_id=config.path, start_time=context.now(), components=())])


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[PagesConfig]]:
    yield CollectorKind(name="pages", config=PagesConfig, collect=collect)


class OtherConfig(InstanceConfig): ...


wrong_config = CollectorKind[OtherConfig](
    name="other",
    config=OtherConfig,
    collect=collect,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
)
wrong_meta = Record(
    record_id="r",
    start_time=wrong_config.interval,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    components=(),
    meta={"site_id": "text, not a list"},  # type: ignore[dict-item] # pyright: ignore[reportArgumentType]
)
