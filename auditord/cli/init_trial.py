"""Checks of a configuration that ``auditord init`` has just written: doctor's, and a dry run of each collector.

The dry runs use a temporary state folder, because the real one belongs to the daemon's user.
"""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio

from auditord.actions import RunRequest
from auditord.cli.collect import Terminal, summary
from auditord.cli.doctor import examined, print_findings
from auditord.cli.installation import Installation, load_installation, run_async, utc_now
from auditord.config.model import Configuration, StoreSection
from auditord.config.store_url import sqlite_url
from auditord.supervisor import acting
from auditord_hookspecs import AuditordError, Batch, Produced, Window
from auditord_hookspecs.terminal import say
from auditord_hookspecs.wire import encode_record

_PERIOD: Final = timedelta(days=1)
_PATIENCE: Final = 60.0


class _FirstRecord(Terminal):
    """Notes the first record of a dry run."""

    text: str | None = None

    def progressed(self, fraction: float) -> None:
        """Show nothing; the run ends within a minute."""

    async def shown(self, batch: Batch) -> None:
        """Note the first record."""
        for item in batch.records[:1] if self.text is None else ():
            self.text = encode_record(item.record if isinstance(item, Produced) else item).decode()


def look(since: datetime) -> None:
    """Run doctor's checks and print what each collector would have collected of the last day."""
    installation = load_installation()
    say("")
    say("auditord doctor:")
    found = [each for each in examined(installation) if each.where != "daemon"]  # the daemon was not started yet
    print_findings(found, show_all=False)
    now = utc_now()
    window = Window(max(min(since, now - timedelta(hours=1)), now - _PERIOD), now)
    with _elsewhere(installation.configuration) as configuration:
        trial = Installation(installation.hooks, configuration, installation.document)
        for name, config in configuration.collectors.items():
            if config.enabled:
                say("")
                say(f"dry run of {name}, {window.start:%Y-%m-%d %H:%M} to {window.stop:%Y-%m-%d %H:%M} UTC:")
                run_async(_dry_run, trial, RunRequest(name, window, dry_run=True, section="collectors"))


@contextmanager
def _elsewhere(configuration: Configuration) -> Generator[Configuration]:
    """Yield the configuration with a temporary state folder and record store."""
    with TemporaryDirectory(prefix="auditord-init-") as folder:
        store = StoreSection(url=sqlite_url(Path(folder, "records.db")))
        yield configuration.model_copy(update={"state_dir": Path(folder), "store": store, "senders": {}, "plugins": {}})


async def _dry_run(installation: Installation, request: RunRequest) -> None:
    first = _FirstRecord()
    try:
        with anyio.fail_after(_PATIENCE):
            async with acting(installation.configuration, installation.hooks, utc_now) as actions:
                report = await actions.run(request, first)
    except TimeoutError:
        say(f"  not ended after {_PATIENCE:.0f} s: look at it with a shorter --from", err=True)
    except AuditordError as error:
        say(f"  {error}", err=True)
    else:
        say(f"  {summary(report)}")
        if first.text is not None:
            say(f"  the first record: {first.text}")
