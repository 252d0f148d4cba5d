"""The daemon as ``auditord run`` starts it, with one more kind: a source of numbered jobs. Not a test itself.

Usage: ``numbers_daemon.py CONFIG``.
"""

import sys
from collections.abc import AsyncGenerator, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import click

from auditord.cli import auditord
from auditord.cli import installation as installation_module
from auditord.hooks import HookEntry, HookModule, Hooks, find_entries, load_hooks
from auditord_hookspecs import Batch, CollectorContext, CollectorKind, Component, Record, RunConfig, hookimpl

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class NumbersConfig(RunConfig):
    """Jobs 0 to ``count``."""

    count: int = 2_000
    batch: int = 50
    pause: float = 0.02


async def collect(config: NumbersConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """The jobs after the checkpoint; each batch overlaps with the one before it, as real sources do."""
    first = context.checkpoint or 0
    for begin in range(first, config.count, config.batch):
        end = min(begin + config.batch, config.count)
        overlap = max(begin - config.batch // 5, 0)
        yield Batch([job(number) for number in range(overlap, end)], checkpoint=end)
        await anyio.sleep(config.pause)


def job(number: int) -> Record:
    """A job that is the same whenever it is read."""
    start = EPOCH + timedelta(minutes=number)
    components = (Component("Cores", number % 64, ()),)
    return Record(f"job-{number}", start, components, start + timedelta(hours=1), {"site_id": ("A",)})


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[Any]]:
    """Bring the kind."""
    yield CollectorKind(name="numbers", config=NumbersConfig, collect=collect)


def load_ours_too() -> Hooks:
    """Every installed hook module, and this one."""
    ours = HookEntry(HookModule("numbers", "numbers_daemon", "tests", "1"), lambda: sys.modules[__name__])
    return load_hooks([], [*find_entries(), ours])


if __name__ == "__main__":
    installation_module.load_installed_hooks = load_ours_too
    try:
        auditord(["run", "--config", str(Path(sys.argv[1]))], standalone_mode=False)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
