"""Transforms in the order of the configuration; none may change what says that two records are the same run."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from auditord.config.kinds import InstalledKinds, configured_transform
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


KINDS = InstalledKinds(
    transforms={"mark": TransformKind("mark", Marked, mark), "later": TransformKind("later", Marked, later)}
)


def configured(**sections: Marked) -> Transform | None:
    configuration: Any = SimpleNamespace(transforms=sections)  # Any: nothing else is looked at
    return configured_transform(configuration, KINDS)


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
