"""Check the running daemon and the last runs of its instances."""

from collections.abc import AsyncGenerator, Callable
from datetime import datetime, timedelta
from typing import Final

from auditord.checks import Places
from auditord.config.kinds import remarks
from auditord.config.model import Configuration, kind_of
from auditord.hooks import Hooks
from auditord.spool import LastRun, Spool, owner
from auditord.spool.spool import FILE as SPOOL_FILE
from auditord.storage import LOCAL, select_enabled
from auditord.tasks.instances import when
from auditord.tasks.runs import first_tick, latest_tick
from auditord_hookspecs import PluginConfig, hookimpl
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.wording import counted, span

OVERDUE: Final = 3
"""The number of intervals without a success after which an instance counts as overdue."""

_EVER: Final = timedelta(days=3_660)
_MOMENT: Final = timedelta(microseconds=1)

OLD_QUEUE: Final = timedelta(hours=1)


@hookimpl
def feature_checks(configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]) -> Places:
    yield "daemon", _check_runs(configuration, hooks, now)


async def _check_runs(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]
) -> AsyncGenerator[Finding, None]:
    """Check whether a daemon runs, and what the spool shows: runs of instances, queues, quarantine."""
    for remark in remarks(configuration, hooks.kinds):
        yield Finding(Severity.WARNING, "configuration", remark, "see the remark")
    pid = owner(configuration.state_dir)
    if pid is None:
        yield Finding(Severity.WARNING, "process", "no daemon is running", "systemctl start auditord, or auditord run")
    else:
        yield Finding(Severity.OK, "process", f"process {pid} is running")
    if not (configuration.state_dir / SPOOL_FILE).exists():
        yield Finding(Severity.OK, "spool", "it does not exist yet: the daemon creates it")
        return
    async with Spool.opened_read_only(configuration.state_dir, now) as spool:
        statistics, runs, enabled = await spool.statistics(), await spool.last_runs(), await spool.list_enabled()
    yield Finding(Severity.OK, "spool", "it can be read, and its schema is up to date")
    senders = {*select_enabled(configuration.senders), *({LOCAL} - configuration.senders.keys())}
    for sender, queue in statistics.queues.items():
        age = timedelta(0) if queue.oldest is None else now() - queue.oldest
        text = f"{counted(queue.entries, 'entry waits', 'entries wait')} for {sender}, the oldest for {span(age)}"
        remedy = "auditord status shows the error" if age > OLD_QUEUE else ""
        if sender not in senders:
            remedy = f"no sender of this name is enabled: enable senders.{sender} again, and it delivers them"
        yield Finding(Severity.WARNING if remedy else Severity.OK, "queue", text, remedy)
    if count := sum(statistics.quarantined.values()):
        text = f"{counted(count, 'job, record or body waits', 'jobs, records or bodies wait')} for a decision"
        yield Finding(Severity.WARNING, "quarantine", text, "auditord quarantine list")
    for section in ("collectors", "plugins"):
        for name, config in getattr(configuration, section).items():
            if config.enabled:
                kind = getattr(hooks.kinds, section)[kind_of(config)]
                last = next(iter(runs.get(name, ())), None)
                waits = isinstance(config, PluginConfig) and not config.run_at_start
                since = enabled.get(name) if waits else None
                yield _check_last_run(name, last, when(config, kind.interval), since, now())


def _check_last_run(
    name: str, last: LastRun | None, times: timedelta | str, enabled: datetime | None, now: datetime
) -> Finding:
    """Check when an instance ran; ``enabled`` is the time from which ticks count for a plugin."""
    if last is None:
        if enabled is not None and (first := first_tick(times, enabled, now)) is not None:
            return Finding(Severity.OK, name, f"it is new; its first run begins at {first:%Y-%m-%d %H:%M} UTC")
        return Finding(
            Severity.WARNING, name, "it has never run", "check whether the daemon is running, and read its log"
        )
    if last.error is not None:
        severity = Severity.FAILURE if last.failures >= OVERDUE else Severity.WARNING
        return Finding(severity, name, f"{counted(last.failures, 'failure')} in a row: {last.error}", "see the message")
    ended = last.started + last.duration
    if isinstance(times, timedelta):
        due = now - OVERDUE * times
    else:  # the tick before the last one
        due = latest_tick(times, (latest_tick(times, now) or now - _EVER) - _MOMENT) or now - _EVER
    if (ended if enabled is None else max(ended, enabled)) < due:
        text = f"its last run ended {span(now - ended)} ago, and one should have ended since {due:%Y-%m-%d %H:%M} UTC"
        return Finding(
            Severity.WARNING, name, text, "check with auditord status whether the daemon is running, or a run hangs"
        )
    return Finding(Severity.OK, name, f"its last run, {span(now - ended)} ago, succeeded")
