from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditord_builtin.slurm import query
from auditord_builtin.slurm.runs import Run, group_runs, whole_runs
from auditord_hookspecs import CommandFailed
from tests.sacct_tables import parse_table

COLUMNS = (
    "JobID Cluster State Submit Start End User UID Group GID NCPUS AllocTRES TotalCPU MaxRSS JobName Comment JobIDRaw"
)
CAPTURED = Path(__file__).with_name("captured.txt").read_bytes()
CAPTURED_WITH = "<6f1ed002ab5595859014ebf0951522d9>"

D = "<nonce>"
SHORT = ["JobID", "Cluster", "JobName", "Comment", "JobIDRaw"]


def captured_runs() -> dict[tuple[str, str], Run]:
    table = parse_table(CAPTURED, COLUMNS.split(), CAPTURED_WITH)
    assert not table.unreadable
    runs = list(group_runs(table.rows))
    assert all(isinstance(run, Run) for run in runs)
    return {(run.allocation["JobID"], run.allocation["Start"]): run for run in runs if isinstance(run, Run)}


def printed(*rows: Sequence[str]) -> bytes:
    return "".join(D.join(row) + "\n" for row in rows).encode()


def test_real_output_with_hostile_names_and_comments_keeps_every_column() -> None:
    texts = {run.allocation["JobID"]: run.allocation for run in captured_runs().values()}
    assert (texts["6"]["JobName"], texts["6"]["Comment"]) == ("näme | with, `odd` ünïcode", "line1\nline2|pipe")
    assert (texts["7"]["JobName"], texts["7"]["Comment"]) == ("a\x1fb\x1ec\x1dd", "x\x1fy\x1ez\x1d\nw\x02\x03")
    assert texts["8"]["JobName"] == "nl\nname"
    assert texts["8"]["Comment"].startswith("99999|99999|root|root\n99999")
    assert {row["Cluster"] for row in texts.values()} == {"testcluster"}
    assert {row["JobIDRaw"] for row in texts.values()} == {*map(str, range(1, 24))}


def test_real_steps_belong_to_their_own_run_of_a_requeued_job() -> None:
    runs = captured_runs()
    first, second = (run for (job_id, _), run in sorted(runs.items()) if job_id == "3")
    assert [step["MaxRSS"] for step in first.steps] == ["10792960", "1650688"]
    assert [step["MaxRSS"] for step in second.steps] == ["11026432", "1736704"]
    assert (first.allocation["State"], second.allocation["State"]) == ("REQUEUED", "COMPLETED")


def test_real_steps_of_every_kind_of_job_find_it() -> None:
    steps = {job_id: [step["JobID"] for step in run.steps] for (job_id, _), run in captured_runs().items()}
    assert steps["11"] == ["11.batch", "11.0", "11.1", "11.2", "11.3"]
    assert steps["9+0"] == ["9+0.batch", "9+0.0"]
    assert steps["9+1"] == ["9+1.0"]
    assert steps["12_4"] == ["12_4.batch"]
    assert steps["22"] == ["22.0"]
    assert steps["14_[1-10%2]"] == []


@pytest.mark.parametrize("step", ["5.batch", "5.extern", "5.interactive", "5.0", "5.0+1", "5.TBD"])
def test_everything_with_a_dot_is_a_step(step: str) -> None:
    table = parse_table(printed(["5", "c", "n", "", "5"], [step, "c", "n", "", step]), SHORT, D)
    [run] = group_runs(table.rows)
    assert isinstance(run, Run)
    assert [row["JobID"] for row in run.steps] == [step]


@pytest.mark.parametrize("tasks", ["14_[1-10%2]", "14_[1,3,5,7...]", "14_[1,3,5,7,...", "14_[1,3.5...]%2"])
def test_the_waiting_tasks_of_an_array_are_a_job_also_where_their_list_is_cut_off(tasks: str) -> None:
    rows = parse_table(printed([tasks, "c", "n", "", "14"], ["5", "c", "n", "", "5"]), SHORT, D).rows
    waiting, run = group_runs(rows)
    assert isinstance(waiting, Run)
    assert isinstance(run, Run)
    assert whole_runs([rows[0], rows[0]]) == 1


def test_a_step_without_its_job_comes_out_alone() -> None:
    rows = parse_table(printed(["5", "c", "n", "", "5"], ["6.0", "c", "n", "", "6.0"]), SHORT, D).rows
    stray, run = group_runs(rows)
    assert isinstance(run, Run)
    assert not run.steps
    assert not isinstance(stray, Run)


def test_a_step_of_an_equal_id_on_another_cluster_is_not_taken() -> None:
    rows = parse_table(printed(["5", "a", "n", "", "5"], ["5.0", "b", "n", "", "5.0"]), SHORT, D).rows
    _stray, run = group_runs(rows)
    assert isinstance(run, Run)
    assert not run.steps


def test_nothing_printed_is_no_jobs() -> None:
    assert not parse_table(b"", SHORT, D).rows


def test_bytes_that_are_no_text_do_not_stop_the_page() -> None:
    broken = printed(["5", "c", "n", "@@", "5"]).replace(b"@@", b"\xff\xfe")
    assert parse_table(broken, SHORT, D).rows[0]["Comment"] == "\N{REPLACEMENT CHARACTER}" * 2


def test_lines_between_rows_are_set_aside() -> None:
    output = (
        b"Welcome to head1\n" + printed(["5", "c", "", "", "5"]) + b"warning: x\n" + printed(["6", "c", "", "", "6"])
    )
    table = parse_table(output + b"bye\n", SHORT, D)
    assert [row["JobID"] for row in table.rows] == ["5", "6"]
    assert table.unreadable == ["Welcome to head1", "warning: x", "bye"]


WHOLE = printed(["5", "c", "name\n", "com\nment", "5"], ["6", "c", "", "", "6"])


@pytest.mark.parametrize("size", range(1, len(WHOLE)))
def test_output_that_is_cut_off_inside_a_row_is_refused(size: int) -> None:
    """A cut right after a whole row looks complete; sacct's exit code is what tells then."""
    if WHOLE[:size] == printed(["5", "c", "name\n", "com\nment", "5"]):
        return
    with pytest.raises(CommandFailed):
        parse_table(WHOLE[:size], SHORT, D)


@pytest.mark.parametrize("garbage", [b"garbage\n", b"JobID|State\n1|COMPLETED\n", b"\n", b"\x00" * 100, b"5<nonce>c\n"])
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(CommandFailed, match="sacct: "):
        parse_table(garbage, SHORT, D)


def test_rows_that_are_shifted_are_refused_and_not_misread() -> None:
    with pytest.raises(CommandFailed, match="expected a job id"):
        parse_table(printed(["x", "5", "c", "n", "y"], ["z", "6", "c", "n", "0"]), SHORT, D)


texts = st.text(st.characters(codec="utf-8") | st.sampled_from("\n\r|\x1e\x1f\x00<>5.+_"))


@given(st.lists(st.tuples(texts, texts), min_size=1))
def test_no_free_text_forges_a_column_or_a_row(free: list[tuple[str, str]]) -> None:
    rows = [[str(number), "c", name, comment, str(number)] for number, (name, comment) in enumerate(free)]
    table = parse_table(printed(*rows), SHORT, D)
    assert [[*row.values()] for row in table.rows] == rows
    assert not table.unreadable


def test_a_text_without_a_separator_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_LONGEST_CELL", 100)
    reader = query.TableReader(("JobID", "State"), "|")
    reader.feed(b"x" * 100)
    with pytest.raises(CommandFailed, match="the output is not a table: 100 characters without a separator"):
        reader.feed(b"x")
