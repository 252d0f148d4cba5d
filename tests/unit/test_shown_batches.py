"""A dry run shows each record as it would be kept: as transforms leave it, or in quarantine if one refuses it."""

import re
from typing import Any

import pytest

from auditord.tasks.instances import _show  # pyright: ignore[reportPrivateUsage]
from auditord.testing import make_record
from auditord_hookspecs import Batch, InvalidRecord, Produced, Quarantined, Record

Wrong: Any = Batch  # type checkers find most of these mistakes


class Observer:
    def __init__(self) -> None:
        self.batches = list[Batch]()

    def show_line(self, line: str) -> None:
        raise AssertionError(line)

    def show_output(self, text: str) -> None:
        raise AssertionError(text)

    def show_progress(self, fraction: float) -> None:
        raise AssertionError(fraction)

    async def show_batch(self, batch: Batch) -> None:
        self.batches.append(batch)


def renamed(record: Record) -> Record:
    if record.record_id == "refused":
        raise InvalidRecord("no site of ours")
    return make_record(record.record_id, site_id="as it is today")


@pytest.mark.anyio
async def test_records_are_shown_as_the_transforms_leave_them() -> None:
    seen, job = Observer(), Quarantined("9", {}, "no start")
    batch = Batch([make_record("a"), Produced(make_record("b"), "b-1"), make_record("refused")], [job])
    kept = await _show("slurm", seen, renamed, batch)
    (shown,) = seen.batches
    assert shown.records == [
        Produced(make_record("a", site_id="as it is today")),
        Produced(make_record("b", site_id="as it is today"), "b-1"),
    ]
    assert [(each.source_id, each.reason) for each in shown.quarantined] == [
        ("9", "no start"),
        ("refused", "no site of ours"),
    ]
    assert (kept.records, kept.quarantined) == (2, 2)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([Batch()], "slurm yields values of type list, not Batch"),
        (Wrong(records=make_record("a")), "slurm: records of a batch is Record("),
        (Wrong(quarantined=["9"]), "slurm: quarantined of a batch has '9', not Quarantined"),
        (Wrong(skipped=1), "slurm: skipped of a batch is 1, not a Mapping"),
        (Wrong(skipped={"never started": "1"}), "slurm: skipped of a batch has '1', not int"),
        (Wrong(seen=["9"]), "slurm: seen of a batch is ['9'], not a Mapping"),
        (Wrong(seen={"9": 7}), "slurm: seen of a batch has 7, not datetime"),
        (Wrong(pending=[]), "slurm: pending of a batch is [], not a Mapping"),
        (Wrong(left_out=["MaxRSS"]), "slurm: left_out of a batch has 'MaxRSS', not LeftOut"),
    ],
)
async def test_a_batch_of_wrong_types_is_refused_with_the_collector_and_the_field(batch: Any, expected: str) -> None:
    with pytest.raises(TypeError, match=re.escape(expected)):
        await _show("slurm", Observer(), None, batch)
