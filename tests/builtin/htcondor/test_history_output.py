import pytest

from auditord_builtin.htcondor.evaluation import Evaluator, read_ad
from auditord_builtin.htcondor.output import cut_json, cut_json_lines, parse_separated
from auditord_hookspecs import CommandFailed

COLUMNS = ["GlobalJobId", "Note", "A+B"]


def test_values_keep_what_is_between_the_words() -> None:
    output = b"W s1#1.0#5 W a,b\n*** \n W 3.5 W\nW s1#2.0#6 W  W undefined W\n"
    rows = [ad.row for ad in parse_separated(output, COLUMNS, "W").ads]
    assert rows == [{"GlobalJobId": "s1#1.0#5", "Note": "a,b\n*** \n", "A+B": "3.5"}, {"GlobalJobId": "s1#2.0#6"}]


def test_warnings_between_jobs_are_kept_apart() -> None:
    output = b"\t*** Warning: Bad history file\n-- a -- b -- c --\n\t*** Warning\n-- d -- e -- f --\n"
    printed = parse_separated(output, COLUMNS, "--")
    assert [ad.row["GlobalJobId"] for ad in printed.ads] == ["a", "d"]
    assert printed.unreadable == ["*** Warning: Bad history file", "*** Warning"]


@pytest.mark.parametrize("output", [b"", b"\n"])
def test_no_jobs(output: bytes) -> None:
    assert not parse_separated(output, COLUMNS, "W").ads


@pytest.mark.parametrize(
    "output", [b"W a W b W c W", b"W a W b W c", b"W a W b W\n", b" ID OWNER SUBMITTED\n", b"W a W b W c W\nW d"]
)
def test_what_is_cut_or_something_else_is_refused(output: bytes) -> None:
    with pytest.raises(CommandFailed):
        parse_separated(output, COLUMNS, "W")


@pytest.mark.parametrize(
    "output", [b"", b"[", b"{}", b"[1]", b'[{"a": 1}', b" ID OWNER SUBMITTED\n", b'[\n{"GlobalJobId": "s1\n']
)
def test_json_that_is_cut_or_something_else_is_refused(output: bytes) -> None:
    with pytest.raises(CommandFailed):
        cut_json(output)


@pytest.mark.parametrize("output", [b'{"a": 1}', b'{"a": 1}\n{"a"\n', b"1\n", b" ID OWNER SUBMITTED\n"])
def test_json_lines_that_are_cut_or_something_else_are_refused(output: bytes) -> None:
    with pytest.raises(CommandFailed):
        cut_json_lines(output)


def test_an_attribute_is_known_in_any_case_and_a_literal_is_never_evaluated() -> None:
    output = b'[\n{\n  "GlobalJobId": "s1#1.0#5",\n  "Cmd": "/bin/true",\n  "X": null,\n  "B": true\n}\n]\n'
    columns = ["globaljobid", "Cmd", "X", "B", "Missing"]
    with Evaluator() as evaluator:
        [ad] = (read_ad(evaluator, text, columns) for text in cut_json(output))
    assert ad.row == {"globaljobid": "s1#1.0#5", "Cmd": "/bin/true", "B": "true"}
    assert not cut_json(b"[\n]\n")
    assert not cut_json_lines(b"")


def test_an_ad_that_is_no_json_is_refused_alone() -> None:
    output = b'{"GlobalJobId": "s1#1.0#5","X": nan}\n{"GlobalJobId": "s1#2.0#6"}\n'
    with Evaluator() as evaluator:
        broken, good = (read_ad(evaluator, text, ["GlobalJobId"]) for text in cut_json_lines(output))
    assert broken.reason is not None
    assert "not a ClassAd" in broken.reason
    assert good.row == {"GlobalJobId": "s1#2.0#6"}


def test_an_ad_that_is_nested_a_thousand_deep_is_refused_alone() -> None:
    deep = b'{"GlobalJobId": "s1#1.0#5","X": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_000 + b"}\n"
    with Evaluator() as evaluator:
        broken, good = (
            read_ad(evaluator, text, ["GlobalJobId"]) for text in cut_json_lines(deep + b'{"GlobalJobId": "b"}\n')
        )
    assert broken.reason is not None
    assert good.row == {"GlobalJobId": "b"}
