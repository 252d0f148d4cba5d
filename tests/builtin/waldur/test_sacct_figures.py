"""The same figures from what sacct prints."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from auditord.testing import FakePluginContext
from auditord_builtin.waldur.usage import (
    AccountUsage,
    BillingMonth,
    agent_query,
    exact_query,
    resource_minutes,
    sacct_month_usage,
)
from auditord_hookspecs import CommandFailed, InvalidRecord
from tests.waldur_settings import waldur_config

JANUARY: Final = BillingMonth(2024, 1, ZoneInfo("UTC"))
LATER: Final = datetime(2024, 3, 1, tzinfo=UTC)
EVERYTHING: Final[dict[str, dict[str, int]]] = {"cpu": {}, "mem": {}, "gres/gpu": {}, "gres/gpu:a100": {}}
RECORDED: Final = {"gres/gpu:a100": {"component": ["GPU_a100"]}}


def printing(*lines: str) -> FakePluginContext:
    return FakePluginContext(commands=lambda _: "".join(f"{line}\n" for line in lines).encode())


@pytest.mark.anyio
async def test_the_worked_example() -> None:
    context = printing(
        "physics|billing=8,cpu=8,mem=4096M,node=1|1-00:00:00|alice",
        "physics|billing=64,cpu=64,mem=131072M,node=1|100:00:00|bob",
    )
    figures = await sacct_month_usage(waldur_config(), context, JANUARY, as_of=LATER)
    assert figures == {
        "physics": AccountUsage(
            total={"cpu": Decimal("6.59"), "mem": Decimal("12896.00")},
            users={
                "alice": {"cpu": Decimal("0.19"), "mem": Decimal("96.00")},
                "bob": {"cpu": Decimal("6.40"), "mem": Decimal("12800.00")},
            },
        )
    }


@pytest.mark.parametrize(
    ("elapsed", "minutes"),
    [
        ("1-02:03:04", Fraction(93784, 60)),
        ("850:00:00", 51000),
        ("32-00:00:00", 46080),  # the agent's parser knew days from 1 to 31 only
        ("0-01:00:00", 60),
        ("05:30", Fraction(11, 2)),  # to the agent: 0
        ("00:00:00", 0),
        ("00:00:30.500", Fraction(305, 600)),
    ],
)
def test_every_form_of_a_duration(elapsed: str, minutes: Fraction) -> None:
    assert resource_minutes(waldur_config(), "cpu=1", elapsed)["cpu"] == minutes


@pytest.mark.parametrize(
    ("printed", "mebibytes"),
    [
        ("4096M", 4096),
        ("2T", 2**21),
        ("1.50G", 1536),  # to the agent: one byte
        ("2P", 2**31),  # the agent failed
        ("524288K", 512),
        ("100K", Fraction(100, 1024)),  # not rounded for each job
        ("4294967296", 4096),
        ("0", 0),
    ],
)
def test_every_form_of_memory(printed: str, mebibytes: Fraction) -> None:
    assert resource_minutes(waldur_config(), f"cpu=1,mem={printed},node=1", "00:01:00")["mem"] == mebibytes


@pytest.mark.parametrize(
    ("resources", "amounts"),
    [
        ("billing=8,cpu=8,gres/gpu=2,mem=4096M,node=1", (11520, 5898240, 2880, 0)),
        ("cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=4096M", (11520, 5898240, 2880, 2880)),
        ("cpu=8,gres/gpu:a100=2,mem=4096M", (11520, 5898240, 2880, 2880)),  # to the agent: no GPU
        ("cpu=8,gres/gpu:a100=1,gres/gpu:h100=2,mem=4096M", (11520, 5898240, 4320, 1440)),
        ("", (0, 0, 0, 0)),  # pending
    ],
)
def test_a_day_of_each_resource(resources: str, amounts: tuple[int, ...]) -> None:
    config = waldur_config(backend_components=EVERYTHING, recorded_as=RECORDED)
    assert tuple(resource_minutes(config, resources, "1-00:00:00").values()) == amounts


def test_what_is_neither_amount_nor_duration_is_no_zero() -> None:
    with pytest.raises(InvalidRecord, match="not a size"):
        resource_minutes(waldur_config(), "cpu=many", "00:01:00")
    with pytest.raises(InvalidRecord, match="not a duration"):
        resource_minutes(waldur_config(), "cpu=1", "a day")


@pytest.mark.anyio
async def test_accounts_and_users_in_any_case_and_jobs_of_nobody() -> None:
    config = waldur_config(backend_components={"cpu": {"unit_factor": 60}}, account_prefixes=["HPC_"])
    context = printing(
        "hpc_a|cpu=1|01:00:00|alice", "HPC_A|cpu=1|01:00:00|Alice", "hpc_a|cpu=1|01:00:00|", "b|cpu=1|01:00:00|c"
    )
    figures = await sacct_month_usage(config, context, JANUARY, as_of=LATER)
    assert figures == {"hpc_a": AccountUsage({"cpu": Decimal(3)}, {"alice": {"cpu": Decimal(2)}})}


@pytest.mark.anyio
async def test_a_job_of_unknown_length_is_left_out_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    context = printing("a|cpu=1|INVALID|alice", "a|cpu=60000|00:01:00|alice")
    figures = await sacct_month_usage(waldur_config(), context, JANUARY, as_of=LATER)
    assert figures["a"].total["cpu"] == 1
    assert "sacct gives no duration for 1 job" in caplog.text


@pytest.mark.anyio
@pytest.mark.parametrize("line", ["sacct: error: x", "a|cpu=1|00:01:00", "a|cpu=x|00:01:00|u", "a|cpu=1|soon|u"])
async def test_what_nobody_asked_for_is_an_error(line: str) -> None:
    with pytest.raises(CommandFailed, match="sacct: "):
        await sacct_month_usage(waldur_config(), printing(line), JANUARY, as_of=LATER)


@pytest.mark.anyio
async def test_a_program_that_fails_is_an_error() -> None:
    with pytest.raises(CommandFailed):
        await sacct_month_usage(waldur_config(), FakePluginContext(), JANUARY, as_of=LATER)


@pytest.mark.parametrize(
    ("zone", "exact", "agent"),
    [
        ("UTC", ("2024-01-01T00:00:00", "2024-02-01T00:00:00"), ("2024-01-01T00:00:00", "2024-01-31T23:59:59")),
        (
            "Europe/Tallinn",
            ("2023-12-31T22:00:00", "2024-01-31T22:00:00"),
            ("2024-01-01T00:00:00", "2024-01-31T23:59:59"),
        ),
        (
            "America/Los_Angeles",
            ("2024-01-01T08:00:00", "2024-02-01T08:00:00"),
            ("2024-01-01T00:00:00", "2024-01-31T23:59:59"),
        ),
    ],
)
def test_the_ends_of_a_month_east_and_west_of_utc(zone: str, exact: Sequence[str], agent: Sequence[str]) -> None:
    config = waldur_config(timezone=zone)
    month = BillingMonth(2024, 1, config.zone)
    ours, theirs = exact_query(config, month.window, as_of=LATER), agent_query(config, month)
    assert _ends(ours.argv(config)) == list(exact)
    assert ours.environment == {"TZ": "UTC"}
    assert _ends(theirs.argv(config)) == list(agent)
    assert theirs.environment == {"TZ": zone}


def test_a_running_month_ends_now() -> None:
    config, now = waldur_config(), JANUARY.window.start + timedelta(days=2, microseconds=5)
    assert _ends(exact_query(config, JANUARY.window, as_of=now).argv(config))[1] == "2024-01-03T00:00:00"


def test_the_agents_own_command_line() -> None:
    config = waldur_config(slurm={"slurm_bin_path": "/opt/slurm/bin", "cluster_name": "hpc"})
    assert list(replace(agent_query(config, JANUARY), accounts=["a", "b"]).argv(config)) == [
        *("/opt/slurm/bin/sacct", "--parsable2", "--noheader", "--cluster=hpc", "--noconvert", "--truncate"),
        *("--allocations", "--allusers", "--starttime=2024-01-01T00:00:00", "--endtime=2024-01-31T23:59:59"),
        *("--accounts=a,b", "--format=Account,ReqTRES,Elapsed,User"),
    ]


def _ends(argv: Sequence[str]) -> list[str]:
    return [part.split("=", 1)[1] for part in argv if part.startswith(("--starttime", "--endtime"))]
