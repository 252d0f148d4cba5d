"""The usage of accounts from Slurm's accounting: its jobs clipped to the period by sacct itself."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Final, Literal, TypeAlias

from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.months import BillingMonth
from auditord_builtin.waldur.usage import AccountUsage, Entry, Minutes, RawUsage, added_up, converted
from auditord_hookspecs import CommandFailed, Context, InvalidRecord, Window
from auditord_hookspecs.mapping import quantities
from auditord_hookspecs.wording import counted

Tres: TypeAlias = Literal["AllocTRES", "ReqTRES"]

_SECOND: Final = timedelta(seconds=1)
_MEBIBYTE: Final = 2**20
_BYTES: Final = frozenset({"mem", "vmem"})
_COLUMNS: Final = 4


@dataclass(frozen=True, slots=True)
class SacctQuery:
    """One call of sacct.

    Args:
        start: the beginning of the period, in the zone that sacct takes for its own; whole seconds; as ``stop``.
        all_runs: whether the earlier runs of a requeued job are printed, too.
        accounts: the only accounts to print; empty: all.
    """

    start: datetime
    stop: datetime
    zone: str
    tres: Tres
    all_runs: bool = True
    accounts: Sequence[str] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """The local zone: sacct reads times without zone, and prints durations alone."""
        return {"TZ": self.zone}

    def argv(self, config: WaldurConfig) -> Sequence[str]:
        """The argument vector."""
        return config.slurm.argv(
            "sacct",
            *("--parsable2", "--noheader"),
            *([f"--cluster={config.slurm.cluster_name}"] if config.slurm.cluster_name else []),
            *("--noconvert", "--truncate", "--allocations", "--allusers"),
            *(["--duplicates"] if self.all_runs else []),
            f"--starttime={_written(self.start)}",
            f"--endtime={_written(self.stop)}",
            *([f"--accounts={','.join(self.accounts)}"] if self.accounts else []),
            f"--format=Account,{self.tres},Elapsed,User",
        )


def exact_query(config: WaldurConfig, window: Window, *, as_of: datetime) -> SacctQuery:
    """The call whose answer is comparable with the record store: UTC, every run, a running job up to ``as_of``."""
    # An end in the future made some versions of sacct count a running job up to it.
    return SacctQuery(window.start.astimezone(UTC), min(window.stop, as_of).astimezone(UTC), "UTC", config.slurm.tres)


def agent_query(config: WaldurConfig, month: BillingMonth) -> SacctQuery:
    """The call of the Waldur site agent, on a host in the billing zone: its month ends a second early."""
    window = month.window
    start, stop = window.start.astimezone(month.zone), (window.stop - _SECOND).astimezone(month.zone)
    return SacctQuery(start, stop, config.timezone, "ReqTRES", all_runs=False)


async def sacct_month_usage(
    config: WaldurConfig, context: Context, month: BillingMonth, *, as_of: datetime
) -> Mapping[str, AccountUsage]:
    """The usage of every account that has any, by the case-folded account, as ``usage.month_usage`` gives it.

    Time in which a job was suspended does not count here, since sacct leaves it out.

    Raises:
        CommandFailed: sacct failed, or printed something else than was asked for.
    """
    window = month.window
    if as_of <= window.start:
        return {}
    return converted(config, await sacct_usage(config, context, exact_query(config, window, as_of=as_of)))


async def sacct_usage(config: WaldurConfig, context: Context, query: SacctQuery) -> RawUsage:
    """The exact usage according to sacct.

    Raises:
        CommandFailed: sacct failed, or printed something else than was asked for.
    """
    result = await context.run_command(
        query.argv(config),
        timeout=config.slurm.sacct_timeout,
        environment=query.environment,
        through=config.slurm.through,
    )
    if not result.stdout and b"error" in result.stderr.lower():  # some versions fail to reach the database with exit 0
        raise CommandFailed(f"sacct: {result.stderr.decode(errors='replace').strip()[-400:]}")
    entries = list(_entries(config, result.stdout.decode(errors="replace")))
    if unknown := sum(entry is None for entry in entries):
        context.log.warning("sacct does not know how long %s ran: left out", counted(unknown, "job"))
    return added_up(entry for entry in entries if entry is not None)


def _entries(config: WaldurConfig, printed: str) -> Iterator[Entry | None]:
    """The consumption of each job; None for a job whose duration is unknown."""
    for line in printed.splitlines():
        columns = line.split("|")
        if len(columns) != _COLUMNS:
            raise CommandFailed(f"sacct: expected account, resources, duration and user, got {line[:200]!r}")
        account, resources, elapsed, user = columns
        try:
            known = not quantities.is_missing(elapsed)
            yield (account, user, resource_minutes(config, resources, elapsed)) if known else None
        except InvalidRecord as error:
            raise CommandFailed(f"sacct: {error} in {line[:200]!r}") from error


def resource_minutes(config: WaldurConfig, resources: str, elapsed: str) -> Minutes:
    """The exact resource-minutes of a job, of the resources that count.

    ``resources`` is such as ``cpu=8,gres/gpu:a100=2,mem=4096M``, ``elapsed`` such as ``32-00:00:00``.

    Raises:
        InvalidRecord: the text of an amount or of the duration is something else.
    """
    minutes = Fraction(quantities.parse_duration(elapsed)) / 60
    return {name: _amount(name, quantities.sub_value(resources, name)) * minutes for name in config.resources}


def _amount(name: str, text: str) -> Fraction:
    amount = Fraction(0 if quantities.is_missing(text) else quantities.parse_size(text))
    return amount / _MEBIBYTE if name in _BYTES else amount


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S")
