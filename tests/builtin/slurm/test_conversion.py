from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.conversion import Converter, convert, raw_of
from auditord_builtin.slurm.kinds import SLURM
from auditord_builtin.slurm.runs import CONTINUED, ELSEWHERE, ENDED, Run
from auditord_hookspecs import InvalidRecord, Produced, Quarantined
from auditord_hookspecs.outcomes import Converted, Outcome, Skipped

ALLOCATION: Mapping[str, str] = {
    "JobID": "7",
    "JobIDRaw": "7",
    "Cluster": "c1",
    "State": "COMPLETED",
    "Submit": "1699999990",
    "Start": "1700000000",
    "End": "1700000060",
    "User": "alice",
    "UID": "1000",
    "Group": "atlas",
    "GID": "100",
    "Partition": "short",
    "Account": "physics",
    "NodeList": "n01",
    "NCPUS": "4",
    "AllocTRES": "billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=2048M,node=1",
    "TotalCPU": "1-00:00:01.974",
    "MaxRSS": "",
}
START = datetime.fromtimestamp(1_700_000_000, UTC)


def config(**options: Any) -> SlurmConfig:
    return SlurmConfig.model_validate(options)


def run(*steps: Mapping[str, str], **columns: str) -> Run:
    allocation = {**ALLOCATION, **columns}
    blank = dict.fromkeys(allocation, "")
    return Run(allocation, tuple({**blank, "JobID": "7.0", "Cluster": "c1", **step} for step in steps))


def convert_run(options: SlurmConfig, one: Run) -> Outcome:
    return Converter(options).convert(one)


def produced(classified: object) -> Produced:
    assert isinstance(classified, Converted), classified
    assert isinstance(classified.produced, Produced), classified
    return classified.produced


def amounts(classified: object) -> dict[str, int]:
    return {component.name: component.amount for component in produced(classified).record.components}


def test_a_job_becomes_the_record_that_auditor_makes_of_it() -> None:
    made = produced(convert_run(config(), run({"MaxRSS": "10792960"}, {"MaxRSS": "92250112"})))
    assert made.record.record_id == "slurm-7"
    assert made.alternate_id == "slurm-7-1700000000"
    assert (made.record.start_time, made.record.runtime) == (START, 60)
    owners = {"user_id": ("alice",), "group_id": ("atlas",)}
    assert made.record.meta == {"site_id": ("NOT_CONFIGURED",), **owners, "outcome": ("completed",)}
    components = {component.name: component.amount for component in made.record.components}
    assert components == {"Cores": 4, "Memory": 2_048, "TotalCPU": 86_401, "MaxRSS": 92_250_112, "GPU": 2}


def test_only_cores_are_mandatory_by_default() -> None:
    bare = run(AllocTRES="", TotalCPU="INVALID")
    assert amounts(convert_run(config(), bare)) == {"Cores": 4}
    classified = convert_run(config(), run(NCPUS=""))
    assert isinstance(classified, Quarantined)
    assert "component Cores: NCPUS: no value" in classified.reason


def test_the_components_of_auditor_come_on_request() -> None:
    assert amounts(convert_run(config(components="auditor"), run())) == {"Cores": 4}


@pytest.mark.parametrize("job_id", ["7", "7_4", "13+0"])
def test_the_id_is_the_prefix_and_the_job_id(job_id: str) -> None:
    made = produced(convert_run(config(record_prefix="site-{cluster}"), run(JobID=job_id)))
    assert made.record.record_id == f"site-c1-{job_id}"


@pytest.mark.parametrize("state", ["REQUEUED", "RESIZING"])
def test_an_earlier_run_of_a_job_has_its_start_in_the_id(state: str) -> None:
    assert produced(convert_run(config(), run(State=state))).record.record_id == "slurm-7-1700000000"
    # With open records the plain id may have been taken when the run began; the alternate serves the later run.
    with_open = produced(convert_run(config(open_records=True), run(State=state)))
    assert (with_open.record.record_id, with_open.alternate_id) == ("slurm-7", "slurm-7-1700000000")


def test_a_finished_run_that_is_requeued_is_the_run_that_it_was() -> None:
    # Slurm 22.05 rewrites its row: FAILED 1700000000 to 1700000005 becomes REQUEUED 1700000000 to 1700000049.
    first = produced(convert_run(config(), run(State="FAILED", End="1700000005")))
    later = produced(convert_run(config(), run(State="REQUEUED", End="1700000049")))
    ids = {first.record.record_id, first.alternate_id}
    assert {later.record.record_id, later.alternate_id} == ids
    assert (first.replaces, later.replaces) == (False, True)
    assert produced(convert_run(config(open_records=True), run(State="REQUEUED"))).replaces


def test_a_resized_job_goes_on_when_it_was_resized() -> None:
    # What Slurm 22.05 prints of two cores for 9 s and one for 52 s: both rows begin with the job.
    two = run(State="RESIZING", Submit="1699999999", End="1700000009", NCPUS="2")
    one = run(State="COMPLETED", Submit="1700000009", End="1700000061", NCPUS="1")
    made = [produced(convert_run(config(components="auditor"), each)) for each in (two, one)]
    assert [each.record.runtime for each in made] == [9, 52]
    assert [each.record.record_id for each in made] == ["slurm-7-1700000000", "slurm-7"]
    assert made[1].alternate_id == "slurm-7-1700000009"


@pytest.mark.parametrize(("runtime", "seconds"), [("wall", 63), ("elapsed", 32)])
def test_suspended_time_counts_unless_it_is_left_out(runtime: str, seconds: int) -> None:
    suspended = run(End="1700000063", Elapsed="00:00:32")
    record = produced(convert_run(config(components="auditor", runtime=runtime), suspended)).record
    assert (record.start_time, record.runtime) == (START, seconds)


def test_the_elapsed_time_of_a_resized_job_begins_with_the_resizing() -> None:
    # sacct prints 61 s from the job's start, of which 10 were in the row before.
    row = run(Submit="1700000010", End="1700000061", Elapsed="00:01:01")
    assert produced(convert_run(config(components="auditor", runtime="elapsed"), row)).record.runtime == 51


@pytest.mark.parametrize("elapsed", ["4" * 12, "9" * 30])
def test_a_time_that_nothing_can_last_sets_its_job_aside_alone(elapsed: str) -> None:
    classified = convert_run(config(components="auditor", runtime="elapsed"), run(Elapsed=elapsed))
    assert isinstance(classified, Quarantined)
    assert "ends after the year 9999" in classified.reason


@pytest.mark.parametrize("state", [*sorted({*ENDED.values()} - CONTINUED - {ELSEWHERE}), "CANCELLED by 7", "NEW"])
def test_every_state_in_which_a_job_is_over_is_accounted_for(state: str) -> None:
    assert produced(convert_run(config(), run(State=state))).record.record_id == "slurm-7"


@pytest.mark.parametrize("state", ["CANCELLED by 0", "FAILED", "NODE_FAIL", "DEADLINE", "BOOT_FAIL"])
@pytest.mark.parametrize("start", ["None", "Unknown", ""])
def test_a_job_that_never_started_makes_no_record(state: str, start: str) -> None:
    assert convert_run(config(), run(State=state, Start=start, TotalCPU="00:00:00")) == Skipped("never started")
    bare = config(components="auditor")
    assert convert_run(bare, run(State=state, Start=start, NodeList="None assigned")) == Skipped("never started")


@pytest.mark.parametrize(
    "ran", [{"State": "COMPLETED"}, {"State": "TIMEOUT"}, {"State": "OUT_OF_MEMORY"}, {"TotalCPU": "01:00:00"}]
)
def test_a_job_that_must_have_run_is_not_dropped_because_its_start_is_unknown(ran: dict[str, str]) -> None:
    classified = convert_run(config(), run(**{"State": "FAILED", "Start": "Unknown", "TotalCPU": "00:00:00", **ran}))
    assert isinstance(classified, Quarantined)
    assert "the job had nodes (n01), but sacct reports no start" in classified.reason


def test_a_run_whose_start_the_database_never_heard_of_began_with_its_first_step() -> None:
    # What Slurm 22.05 prints of some runs that were requeued within their first seconds.
    steps = [{"Start": "1700000003"}, {"Start": "1700000002"}, {"Start": "Unknown"}]
    made = produced(convert_run(config(), run(*steps, State="REQUEUED", Start="None")))
    assert (made.record.record_id, made.alternate_id) == ("slurm-7-1700000002", "slurm-7")
    assert (made.record.start_time, made.record.runtime) == (START + timedelta(seconds=2), 58)


def test_a_run_on_nodes_is_not_dropped_because_its_start_is_unknown() -> None:
    classified = convert_run(config(components="auditor"), run(State="REQUEUED", Start="None"))
    assert isinstance(classified, Quarantined)
    assert "the job had nodes (n01), but sacct reports no start" in classified.reason


def test_a_job_without_nodes_that_ended_as_it_started_never_did() -> None:
    # What Slurm 22.05 prints of some jobs that were cancelled while they waited.
    row = {"State": "CANCELLED by 0", "NodeList": "None assigned", "End": ALLOCATION["Start"]}
    assert convert_run(config(), run(**row)) == Skipped("never started")
    assert isinstance(convert_run(config(), run(**{**row, "End": "1700000001"})), Converted)


def test_a_job_that_took_no_time_makes_a_record() -> None:
    assert produced(convert_run(config(), run(End=ALLOCATION["Start"]))).record.runtime == 0


def test_a_job_of_another_cluster_of_the_federation_is_left_to_it() -> None:
    assert isinstance(convert_run(config(), run(State="REVOKED")), Skipped)


def test_a_running_job_makes_an_open_record() -> None:
    made = produced(convert_run(config(open_records=True), run(State="RUNNING", End="Unknown")))
    assert (made.record.record_id, made.record.stop_time) == ("slurm-7", None)


def test_an_end_that_is_missing_is_no_running_job() -> None:
    classified = convert_run(config(), run(State="COMPLETED", End="Unknown"))
    assert isinstance(classified, Quarantined)
    assert "runawayjobs" in classified.reason


@pytest.mark.parametrize(
    ("chosen", "passes"),
    [
        ({"status": ["completed", "failed"]}, True),
        ({"status": ["CD"]}, True),
        ({"status": ["timeout"]}, False),
        ({"partition": ["short"]}, True),
        ({"partition": ["long"]}, False),
        ({"user": ["alice"]}, True),
        ({"user": ["1000"]}, True),
        ({"user": ["bob"]}, False),
        ({"group": ["atlas"]}, True),
        ({"group": ["100"]}, True),
        ({"group": ["bio"]}, False),
        ({"account": ["physics", "biology"]}, True),
        ({"account": ["biology"]}, False),
        ({"account": ["Physics"]}, True),
        ({"partition": ["SHORT"]}, True),
        ({"user": ["Alice"]}, False),
        ({"group": ["Atlas"]}, False),
        ({"user": ["alice"], "account": ["biology"]}, False),
    ],
)
def test_jobs_are_filtered_and_counted(chosen: dict[str, list[str]], passes: bool) -> None:  # noqa: FBT001 a table
    classified = convert_run(config(job_filter=chosen), run())
    assert isinstance(classified, Converted) if passes else classified == Skipped("filtered out")


def test_a_job_that_is_filtered_out_may_have_a_time_that_cannot_be_read() -> None:
    row = run(End="soon")
    assert convert_run(config(job_filter={"user": ["bob"]}), row) == Skipped("filtered out")
    assert isinstance(convert_run(config(), row), Quarantined)


def test_deleted_users_and_groups_are_known_by_their_numbers() -> None:
    meta = produced(convert_run(config(), run(User="", Group="4294967294"))).record.meta
    assert meta == {
        "site_id": ("NOT_CONFIGURED",),
        "user_id": ("1000",),
        "group_id": ("100",),
        "outcome": ("completed",),
    }
    meta = produced(convert_run(config(), run(User="", UID="4294967294", Group="", GID="4294967294"))).record.meta
    assert meta == {"site_id": ("NOT_CONFIGURED",), "outcome": ("completed",)}


def test_users_cannot_name_site_user_group_or_outcome_in_a_comment() -> None:
    rules = [{"name": "comment", "key": "Comment", "key_type": "Json"}]
    comment = '{"user_id": "bob", "site_id": "x", "voms": "/atlas", "outcome": "completed"}'
    classified = convert_run(config(meta=rules), run(Comment=comment, State="FAILED"))
    assert isinstance(classified, Converted)
    assert classified.record.meta == {
        "voms": ("/atlas",),
        "site_id": ("NOT_CONFIGURED",),
        "user_id": ("alice",),
        "group_id": ("atlas",),
        "outcome": ("failed",),
    }
    assert len(classified.left_out) == 3


@pytest.mark.parametrize(
    ("policy", "steps", "expected"),
    [
        ("max", ["900K", "1M", ""], 1_048_576),
        ("sum", ["1000", "24K", ""], 25_576),
        ("batch", ["7"], None),
        ("alloc", ["7"], None),
    ],
)
def test_a_column_of_steps_is_merged_by_its_policy(policy: str, steps: list[str], expected: int | None) -> None:
    classified = convert_run(config(merge={"MaxRSS": policy}), run(*({"MaxRSS": step} for step in steps)))
    assert amounts(classified).get("MaxRSS") == expected


def test_the_batch_step_counts_before_the_interactive_one() -> None:
    batch = {"JobID": "7.batch", "MaxRSS": "2"}
    interactive = {"JobID": "7.interactive", "MaxRSS": "1"}
    merge = {"MaxRSS": "batch"}
    assert amounts(convert_run(config(merge=merge), run(interactive, batch, {"MaxRSS": "9"})))["MaxRSS"] == 2
    assert amounts(convert_run(config(merge=merge), run(interactive, {"MaxRSS": "9"})))["MaxRSS"] == 1


def test_lists_of_steps_are_added_entry_by_entry() -> None:
    rule = {"name": "Used", "key": "TRESUsageInTot", "sub_key": "cpu", "key_type": "Time"}
    steps = [{"TRESUsageInTot": "cpu=00:00:02,mem=10K"}, {"TRESUsageInTot": "cpu=1-00:00:00,energy=0"}]
    classified = convert_run(config(components=[rule]), run(*steps, TRESUsageInTot=""))
    assert amounts(classified) == {"Used": 86_402}


def energy_step(kind: str, joules: int | str, *, start: int = 0, end: int = 60, nodes: str = "n01") -> dict[str, str]:
    """A step from and to a second of the job, with its energy in both columns."""
    times = {"Start": str(1_700_000_000 + start), "End": str(1_700_000_000 + end)}
    figures = {"ConsumedEnergyRaw": str(joules), "TRESUsageInTot": f"cpu=00:00:10,energy={joules},mem=1K"}
    return {"JobID": f"7.{kind}", "NodeList": nodes, **times, **figures}


SCRIPT = energy_step("batch", 500)
NOTHING = energy_step("2", "18446744073709551614")


@pytest.mark.parametrize(
    ("row", "steps", "joules"),
    [
        ("4000", [SCRIPT, energy_step("0", 1_000, end=20), energy_step("1", 3_000, start=20)], 4_000),
        ("4000", [SCRIPT, NOTHING, energy_step("0", 1_000, end=20), energy_step("1", 3_000, start=25)], 4_000),
        ("4000", [SCRIPT, energy_step("0", 1_000), energy_step("1", 3_000)], 3_000),  # at the same time
        ("", [energy_step("0", 1_000, end=30), energy_step("1", 3_000, start=20, end=50)], 3_000),
        ("", [energy_step(str(number), 10, start=number, end=number + 1) for number in range(60)], 600),
        ("4000", [energy_step("0", 1_000), energy_step("1", 3_000, nodes="n02")], 4_000),
        ("4000", [energy_step("0", 1_000, nodes="n[01-02]"), energy_step("1", 3_000, nodes="n02")], 3_000),
        ("", [energy_step("interactive", 700), energy_step("0", 100)], 700),
        ("", [SCRIPT], 500),
        (
            "4160000000",
            [
                SCRIPT,
                energy_step("extern", 2_080_000_000),
                energy_step("0", 2_000_000_000),
                energy_step("1", 80_000_000),
            ],
            2_080_000_000,
        ),
    ],
)
def test_energy_of_steps_counts_once(row: str, steps: list[dict[str, str]], joules: int) -> None:
    rules = [
        {"name": "Energy", "key": "ConsumedEnergyRaw", "key_type": "Energy"},
        {"name": "Used", "key": "TRESUsageInTot", "sub_key": "energy", "optional": True},
    ]
    own = {"ConsumedEnergyRaw": row, "TRESUsageInTot": f"energy={row}" if row else ""}
    assert amounts(convert_run(config(components=rules), run(*steps, **own))) == {"Energy": joules, "Used": joules}


def test_energy_of_steps_without_times_is_not_added_up() -> None:
    rule = {"name": "Energy", "key": "ConsumedEnergyRaw", "key_type": "Energy"}
    steps = [{"ConsumedEnergyRaw": "512"}, {"ConsumedEnergyRaw": "500"}, {"ConsumedEnergyRaw": "18446744073709551614"}]
    assert amounts(convert_run(config(components=[rule]), run(*steps, ConsumedEnergyRaw=""))) == {"Energy": 512}
    assert amounts(convert_run(config(components=[rule]), run(NOTHING, ConsumedEnergyRaw="4000"))) == {"Energy": 4_000}
    chosen = config(components=[rule], merge={"ConsumedEnergyRaw": "sum"})
    assert amounts(convert_run(chosen, run(*steps, ConsumedEnergyRaw=""))) == {"Energy": 1_012}


@pytest.mark.parametrize(("text", "expected"), [("512M", 512), ("4000Mn", 8_000), ("1.5Gc", 6_144), ("0n", 0)])
def test_requested_memory_per_node_or_core_is_multiplied(text: str, expected: int) -> None:
    rule = {"name": "Memory", "key": "ReqMem", "key_type": "IntegerMega"}
    assert amounts(convert_run(config(components=[rule]), run(ReqMem=text, NNodes="2"))) == {"Memory": expected}


def test_requested_memory_without_the_number_of_nodes_is_quarantined() -> None:
    rule = {"name": "Memory", "key": "ReqMem", "key_type": "IntegerMega"}
    classified = convert_run(config(components=[rule]), run(ReqMem="4000Mn", NNodes=""))
    assert isinstance(classified, Quarantined)
    assert "ReqMem" in classified.reason


def test_what_is_quarantined_can_be_tried_again_under_another_configuration() -> None:
    site = {"name": "A", "only_if": {"key": "Partition", "matches": "long"}}
    classified = convert_run(config(sites=[site]), run({"MaxRSS": "5"}))
    assert isinstance(classified, Quarantined)
    assert classified.source_id == "c1/7@1700000000"
    assert SLURM.convert is not None
    with pytest.raises(InvalidRecord, match="no entry of sites"):
        SLURM.convert(config(sites=[site]), classified.raw)
    again = SLURM.convert(config(), classified.raw)
    assert again == produced(convert_run(config(), run({"MaxRSS": "5"})))
    assert convert(config(job_filter={"user": ["bob"]}), classified.raw) is None


def test_a_column_that_was_not_read_is_named_on_retry() -> None:
    raw = raw_of(run(), steps_asked=True)
    del raw["allocation"]["NCPUS"]
    with pytest.raises(InvalidRecord, match="NCPUS"):
        convert(config(), raw)
    with pytest.raises(InvalidRecord, match="discard it"):
        convert(config(), {"line": "garbage"})


ZERO = "00:00:00"
LOOKED_AT = "cpu=00:00:00,energy=0,fs/disk=5273,mem=262144,pages=0,vmem=0"


@pytest.mark.parametrize(
    ("own", "steps", "seconds"),
    [
        # Slurm 25.05 prints zero for every step, or for those of srun alone.
        (ZERO, [(ZERO, "cpu=03:30:00,mem=5M"), (ZERO, "cpu=00:00:01,mem=256K")], 12_601),
        ("00:10.000", [("00:10.000", "cpu=00:00:09,mem=1M"), (ZERO, "cpu=03:20:00,mem=2M")], 12_010),
        ("00:12.500", [("00:10.000", "cpu=00:00:09"), ("00:02.400", "cpu=00:00:02"), ("", "")], 12),
        ("", [("00:10.000", ""), ("", "cpu=00:00:05")], 15),
        # What was looked at and used nothing has used nothing; what nobody looked at is not known.
        (ZERO, [(ZERO, LOOKED_AT)], 0),
        (ZERO, [(ZERO, "cpu=00:00:00,energy=7,mem=0,vmem=0")], None),
        (ZERO, [], None),
    ],
)
def test_cpu_time_is_of_each_step_the_larger_of_both(
    own: str, steps: list[tuple[str, str]], seconds: int | None
) -> None:
    rows = [{"TotalCPU": total, "TRESUsageInTot": gathered} for total, gathered in steps]
    made = convert_run(config(), run(*rows, TotalCPU=own, TRESUsageInTot=""))
    assert amounts(made).get("TotalCPU") == seconds
    assert isinstance(made, Converted)
    assert [each.name for each in made.left_out] == ([] if seconds is not None else ["TotalCPU"])


def test_cpu_time_of_zero_is_kept_where_it_may_be_right_or_must_be_there() -> None:
    unknown = run(TotalCPU=ZERO)
    needed = {"name": "TotalCPU", "key": "TotalCPU", "key_type": "Time"}
    assert amounts(convert_run(config(), run(TotalCPU=ZERO, End="1700000059")))["TotalCPU"] == 0
    assert amounts(convert_run(config(components=[needed]), unknown)) == {"TotalCPU": 0}
    assert amounts(convert_run(config(merge={"TotalCPU": "alloc"}), unknown))["TotalCPU"] == 0
    # What a running job has used is not known, and no fault either.
    running = convert_run(config(), run(TotalCPU=ZERO, End="Unknown", State="RUNNING"))
    assert isinstance(running, Converted)
    assert ("TotalCPU" in amounts(running), running.left_out) == (False, [])


def test_memory_and_energy_of_zero_were_not_measured() -> None:
    rules = [
        {"name": "MaxRSS", "key": "MaxRSS", "key_type": "Size", "optional": True},
        {"name": "Energy", "key": "ConsumedEnergyRaw", "optional": True, "factor": "0.001"},
        {"name": "Joules", "key": "AllocTRES", "sub_key": "energy", "optional": True},
        {"name": "Virtual", "key": "TRESUsageInTot", "sub_key": "vmem", "key_type": "Size", "optional": True},
        {"name": "Needed", "key": "MaxRSS", "key_type": "Size"},
    ]

    def found(memory: str, energy: str, allocated: str, gathered: str) -> dict[str, int]:
        step = {"MaxRSS": memory, "ConsumedEnergyRaw": energy, "TRESUsageInTot": gathered}
        more = {"ConsumedEnergyRaw": "", "TRESUsageInTot": "", "AllocTRES": allocated}
        return amounts(convert_run(config(components=rules), run(step, **more)))

    assert found("0", "0", "cpu=4,energy=0", "mem=0,vmem=0") == {"Needed": 0}
    measured = {"MaxRSS": 1_024, "Energy": 0, "Joules": 5, "Virtual": 2_048, "Needed": 1_024}
    assert found("1K", "5", "cpu=4,energy=5", "mem=0,vmem=2K") == measured  # 5 J are 0 kJ, and known


def test_other_cpu_times_of_zero_are_unknown_where_nothing_was_measured() -> None:
    rules = [
        {"name": "User", "key": "UserCPU", "key_type": "Time", "optional": True},
        {"name": "Gathered", "key": "TRESUsageInTot", "sub_key": "cpu", "key_type": "Time", "optional": True},
        {"name": "Needed", "key": "UserCPU", "key_type": "Time"},
    ]

    def found(gathered: str, end: str = "1700003600") -> dict[str, int]:
        row = {"UserCPU": "00:00:00", "TRESUsageInTot": "", "End": end}
        return amounts(convert_run(config(components=rules), run({**row, "TRESUsageInTot": gathered}, **row)))

    assert found("cpu=00:00:00,mem=0") == {"Needed": 0}
    assert found("cpu=00:00:00,mem=512K") == {"User": 0, "Gathered": 0, "Needed": 0}
    assert found("cpu=00:00:00,mem=0", end="1700000030") == {"User": 0, "Gathered": 0, "Needed": 0}


@pytest.mark.parametrize(
    ("column", "name", "text"),
    [
        ("MaxRSS", "MaxRSS", "16E"),
        ("MaxRSS", "MaxRSS", "18446744073709518848"),
        ("MaxRSS", "MaxRSS", "lots"),
        ("TotalCPU", "TotalCPU", "213503982334-14:25:51"),
        ("AveCPU", "AveCPU", "213503982334-14:25:51"),
        ("TRESUsageInTot", "Read", "fs/disk=1e99,mem=5M"),
    ],
)
def test_a_side_figure_that_cannot_be_believed_costs_no_record(column: str, name: str, text: str) -> None:
    more = [
        {"name": "AveCPU", "key": "AveCPU", "key_type": "Time", "optional": True},
        {"name": "Read", "key": "TRESUsageInTot", "sub_key": "fs/disk", "optional": True},
        {"name": "Peak", "key": "TRESUsageInTot", "sub_key": "mem", "key_type": "Size", "optional": True},
    ]
    rules = [rule.model_dump() for rule in config().components] + more
    good = {"MaxRSS": "1K", "AveCPU": "00:01", "TotalCPU": "00:01", "TRESUsageInTot": "fs/disk=7,mem=5M"}
    job = run({**good, column: text, "JobID": "7.batch"}, good, AveCPU="", TRESUsageInTot="")
    made = convert_run(config(components=rules), job)
    assert isinstance(made, Converted)
    assert {rule["name"] for rule in rules} - amounts(made).keys() == {name}
    assert [each.name for each in made.left_out] == [name]
    needed = [{**rule, "optional": rule["name"] != name} for rule in rules if rule["name"] in {"Cores", name}]
    refused = convert_run(config(components=needed), job)
    assert isinstance(refused, Quarantined)
    assert f"component {name}: {column}" in refused.reason


def test_cores_of_a_job_without_any_are_not_known_if_its_step_had_some() -> None:
    without = run({"NCPUS": "5", "JobID": "7.0"}, NCPUS="0")
    refused = convert_run(config(), without)
    assert isinstance(refused, Quarantined)
    assert "component Cores: NCPUS: it is 0, but step 7.0 had 5" in refused.reason
    assert amounts(convert_run(config(merge={"NCPUS": "max"}), without))["Cores"] == 5
    assert amounts(convert_run(config(), run({"NCPUS": "0"}, NCPUS="0")))["Cores"] == 0


@pytest.mark.parametrize("column", ["Start", "Submit", "End"])
def test_a_time_of_zero_is_none_and_never_1970(column: str) -> None:
    made = convert_run(config(), run({"Start": "1700000001"}, **{column: "0"}))
    if column == "End":
        assert isinstance(made, Quarantined)
        assert "sacct reports no end" in made.reason
    else:
        assert produced(made).record.start_time in {START, START + timedelta(seconds=1)}


@given(
    st.dictionaries(st.sampled_from([*ALLOCATION]), st.text()), st.dictionaries(st.sampled_from(["MaxRSS"]), st.text())
)
def test_no_row_raises(columns: dict[str, str], step: dict[str, str]) -> None:
    classified = convert_run(config(), run(step, **columns))
    assert isinstance(classified, Converted | Skipped | Quarantined)
