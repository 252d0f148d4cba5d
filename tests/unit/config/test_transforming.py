"""Transforms in the order of the configuration; none may change what says that two records are the same run."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from auditord.config.kinds import InstalledKinds, make_transform
from auditord.testing import make_record
from auditord_hookspecs import InstanceConfig, InvalidRecord, Record, Transform, TransformKind


class Marked(InstanceConfig):
    kind: str = "mark"
    text: str


def mark(config: Marked) -> Transform:
    def change(record: Record) -> Record:
        marks = (record.meta or {}).get("marks", ())
        return msgspec.structs.replace(record, meta={**(record.meta or {}), "marks": (*marks, config.text)})

    return change


def later(_: Marked) -> Transform:
    return lambda record: msgspec.structs.replace(record, start_time=record.start_time + timedelta(seconds=1))


def write(config: Marked) -> Transform:
    def change(record: Record) -> Record:
        if record.meta is not None:
            record.meta["marks"] = (*record.meta.get("marks", ()), config.text)
        return record

    return change


KINDS = InstalledKinds(
    transforms={
        name: TransformKind(name, Marked, make) for name, make in [("mark", mark), ("later", later), ("write", write)]
    }
)


def configured(**sections: Marked) -> Transform | None:
    configuration: Any = SimpleNamespace(transforms=sections)  # Any: nothing else is looked at
    return make_transform(configuration, KINDS)


def test_they_follow_each_other() -> None:
    transform = configured(b=Marked(text="1"), a=Marked(text="2"), off=Marked(text="3", enabled=False))
    assert transform is not None
    assert (transform(make_record("x")).meta or {})["marks"] == ("1", "2")


def test_without_any_nothing_is_in_the_way() -> None:
    assert configured() is None
    assert configured(off=Marked(text="x", enabled=False)) is None


def test_a_run_stays_the_same_run() -> None:
    transform = configured(bad=Marked(kind="later", text=""))
    assert transform is not None
    with pytest.raises(InvalidRecord, match="changed the id or the times of 'x'"):
        transform(make_record("x"))


def test_what_is_written_into_meta_concerns_one_record_alone() -> None:
    transform = configured(bad=Marked(kind="write", text="1"))
    assert transform is not None
    shared = {"site_id": ("A",)}
    records = [msgspec.structs.replace(make_record(name), meta=shared) for name in "ab"]
    assert [transform(record).meta for record in records] == [{**shared, "marks": ("1",)}] * 2
    assert shared == {"site_id": ("A",)}
