"""The sender against AUDITOR's rules: everything arrives once, and whatever cannot is refused alone, with a reason."""

from collections.abc import AsyncIterator, Generator, Sequence
from datetime import timedelta
from itertools import chain, cycle, repeat
from typing import Any

import msgspec
import pytest

from auditord.client import AnsweredError, ClientError, ConnectionFailed, InvalidAnswer
from auditord.testing import FakeSenderContext, make_record
from auditord.testing.records import EPOCH
from auditord_builtin.remote.delivery import REMOTE, PendingRecord, RemoteConfig, Step, Update, open_remote, steps
from auditord_hookspecs import Close, Entry, Insert, RecordsRejected, Replace, Sender
from tests.fake_auditor import FakeAuditor, Fault, fake_auditor

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


@pytest.fixture
def auditor() -> Generator[FakeAuditor, None, None]:
    with fake_auditor() as running:
        yield running


def config(auditor: FakeAuditor, **options: Any) -> RemoteConfig:
    return RemoteConfig.model_validate({"url": auditor.url, "timeout": "2s", **options})


@pytest.fixture
async def sender(auditor: FakeAuditor) -> AsyncIterator[Sender]:
    async with open_remote(config(auditor), FakeSenderContext()) as sender:
        yield sender


@pytest.fixture
async def eager(auditor: FakeAuditor) -> AsyncIterator[Sender]:
    """A sender that was asked for open records."""
    async with open_remote(config(auditor, open_records=True), FakeSenderContext()) as sender:
        yield sender


def inserts(*names: str) -> list[Entry]:
    return [Insert(make_record(name)) for name in names]


async def refusals(sender: Sender, entries: Sequence[Entry]) -> dict[int, str]:
    with pytest.raises(RecordsRejected) as caught:
        await sender.send(entries)
    return caught.value.reasons


def requests(auditor: FakeAuditor) -> list[str]:
    return [f"{method} {target}" for method, target in auditor.requests]


async def test_a_batch_is_one_request(sender: Sender, auditor: FakeAuditor) -> None:
    await sender.send(inserts("a", "b", "c"))
    assert list(auditor.records) == ["a", "b", "c"]
    assert requests(auditor) == ["POST /records"]


async def test_the_batch_size_bounds_a_request(auditor: FakeAuditor) -> None:
    async with open_remote(config(auditor, batch_size=2), FakeSenderContext()) as sender:
        await sender.send(inserts(*"abcde"))
    assert requests(auditor) == ["POST /records", "POST /records", "POST /record"]
    assert list(auditor.records) == list("abcde")


async def test_what_is_there_already_counts_as_delivered(sender: Sender, auditor: FakeAuditor) -> None:
    names = [f"r{number}" for number in range(20)]
    await sender.send(inserts(*names[:13]))
    await sender.send(inserts(*names))
    assert auditor.records == {name: make_record(name) for name in names}


@pytest.mark.parametrize("ignore", [False, True])
async def test_a_conflict_splits_the_batch_until_the_bad_record_is_alone(
    sender: Sender, auditor: FakeAuditor, *, ignore: bool
) -> None:
    auditor.ignore_exists = ignore  # AUDITOR then says 200 with a warning, and drops the whole bulk
    auditor.records["r7"] = taken = make_record("r7", start=EPOCH - HOUR)
    names = [f"r{number}" for number in range(16)]
    reasons = await refusals(sender, inserts(*names))
    assert reasons == {7: "The id 'r7' belongs to another run there, which started at 2025-12-31T23:00:00Z."}
    assert auditor.records == {name: make_record(name) for name in names} | {"r7": taken}
    assert len(auditor.requests) < 12


async def test_the_alternate_id_is_used_only_if_the_start_differs(sender: Sender, auditor: FakeAuditor) -> None:
    recycled, same = make_record("slurm-1#?/é", start=EPOCH - HOUR), make_record("slurm-2", site_id="known")
    auditor.records.update({"slurm-1#?/é": recycled, "slurm-2": same})
    entries: list[Entry] = [
        Insert(make_record("slurm-1#?/é"), "slurm-1-later"),
        Insert(make_record("slurm-2"), "slurm-2-later"),
        Insert(make_record("slurm-3"), "slurm-3-later"),
    ]
    for _ in range(2):
        await sender.send(entries)
        assert set(auditor.records) == {"slurm-1#?/é", "slurm-1-later", "slurm-2", "slurm-3"}
    assert auditor.records["slurm-2"] == same
    assert auditor.records["slurm-1-later"] == make_record("slurm-1-later")


async def test_a_run_is_corrected_under_the_id_that_it_has_there(sender: Sender, auditor: FakeAuditor) -> None:
    auditor.records["a"] = make_record("a", site_id="S")
    auditor.records["b"] = make_record("b", start=EPOCH + HOUR)
    longer = [make_record(name, runtime=2 * HOUR, site_id="S") for name in ("a-1", "b-1")]
    for _ in range(2):
        await sender.send([Replace(longer[0], "a"), Replace(longer[1], "b")])
        assert set(auditor.records) == {"a", "b", "b-1"}
        assert auditor.records["a"].stop_time == longer[0].stop_time


async def test_both_ids_taken(sender: Sender, auditor: FakeAuditor) -> None:
    for name, start in (("a", EPOCH - HOUR), ("b", EPOCH + HOUR)):
        auditor.records[name] = make_record(name, start=start)
    reasons = await refusals(sender, [Insert(make_record("a"), "b")])
    assert reasons == {0: "The id 'b' belongs to another run there, which started at 2026-01-01T01:00:00Z."}


async def test_a_taken_id_that_cannot_be_read_is_refused(sender: Sender, auditor: FakeAuditor) -> None:
    auditor.records["a"] = make_record("a", start=EPOCH - HOUR)

    def vanish(method: str, _target: str) -> None:
        if method == "GET":
            auditor.records.pop("a", None)

    auditor.fault = vanish
    assert "returns no record" in (await refusals(sender, inserts("a")))[0]


async def test_a_reader_that_fails_for_the_moment_is_a_passing_fault(sender: Sender, auditor: FakeAuditor) -> None:
    auditor.records["a"] = make_record("a", start=EPOCH - HOUR)
    auditor.fault = lambda method, _target: Fault.ERROR if method == "GET" else None
    with pytest.raises(AnsweredError):
        await sender.send(inserts("a"))


async def test_only_final_records_go_out_unless_open_ones_are_asked_for(sender: Sender, auditor: FakeAuditor) -> None:
    running = make_record("a", runtime=None)
    await sender.send([Insert(running), *inserts("b")])
    assert set(auditor.records) == {"b"}
    await sender.send([Insert(make_record("a"))])
    assert auditor.records["a"] == make_record("a")


async def test_open_records_are_stopped_when_their_full_record_comes(eager: Sender, auditor: FakeAuditor) -> None:
    running = make_record("a", runtime=None)
    await eager.send([Insert(running)])
    assert auditor.records["a"] == running
    await eager.send([Insert(running), *inserts("b", "a", "c")])
    assert auditor.records == {name: make_record(name) for name in "abc"}
    await eager.send([Insert(running)])  # late news of a run whose end is known
    assert auditor.records["a"] == make_record("a")


async def test_order_per_record_is_kept(eager: Sender, auditor: FakeAuditor) -> None:
    entries: list[Entry] = [
        Insert(make_record("a", runtime=None)),
        Insert(make_record("b")),
        Close("a", EPOCH + HOUR),
        Insert(make_record("c")),
        Close("a", EPOCH + 2 * HOUR),
        Replace(make_record("b", runtime=3 * HOUR)),
    ]
    await eager.send(entries)
    assert auditor.records == {
        "a": make_record("a", runtime=2 * HOUR),
        "b": make_record("b", runtime=3 * HOUR),
        "c": make_record("c"),
    }


async def test_what_cannot_be_closed_or_corrected_is_refused(sender: Sender, auditor: FakeAuditor) -> None:
    await sender.send(inserts("a"))
    entries: list[Entry] = [
        Close("nobody", EPOCH),
        Replace(make_record("a", site_id="corrected")),
        *inserts("b"),
        Replace(make_record("new")),
    ]
    reasons = await refusals(sender, entries)
    assert {position: reason[:35] for position, reason in reasons.items()} == {
        0: "There is no record 'nobody' there t",
        1: "The record 'a' is there with other ",
    }
    assert set(auditor.records) == {"a", "b", "new"}


async def test_a_record_that_the_server_refuses_is_refused_alone(sender: Sender, auditor: FakeAuditor) -> None:
    huge = make_record("huge", components={f"{n}{'x' * 200}": 1 for n in range(11_000)})
    invalid = make_record("invalid")
    msgspec.structs.force_setattr(invalid, "meta", {" ": ("blank keys are no names",)})
    entries: list[Entry] = [*inserts("a"), Insert(huge), *inserts("b"), Insert(invalid), *inserts("c")]
    reasons = await refusals(sender, entries)
    assert set(reasons) == {1, 3}
    assert "413 JSON payload" in reasons[1]
    assert "400 Json deserialize error" in reasons[3]
    assert set(auditor.records) == {"a", "b", "c"}


@pytest.mark.parametrize("status", [401, 403, 404, 405, 407, 408, 429])
async def test_a_refusal_that_is_not_about_the_record_lets_everything_wait(
    sender: Sender, auditor: FakeAuditor, status: int
) -> None:
    auditor.refuse_with = status
    for entries in (inserts("a"), inserts("a", "b"), [Replace(make_record("a"))]):
        with pytest.raises(AnsweredError) as caught:
            await sender.send(entries)
        assert caught.value.status == status
    if status != 404:
        with pytest.raises(AnsweredError):
            await sender.send([Close("a", EPOCH)])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.RESET_BEFORE, ConnectionFailed),
        (Fault.RESET_AFTER, ConnectionFailed),
        (Fault.ERROR, AnsweredError),
        (Fault.UNAVAILABLE, AnsweredError),
    ],
)
async def test_a_passing_fault_is_raised_and_the_repetition_ends_well(
    sender: Sender, auditor: FakeAuditor, fault: Fault, error: type[ClientError]
) -> None:
    to_come = chain([None, None, fault, fault], repeat(None))
    auditor.fault = lambda _method, _target: next(to_come)
    entries: list[Entry] = [*inserts("a", "b"), Close("a", EPOCH + 2 * HOUR), *inserts("c", "d")]
    with pytest.raises(error):
        await sender.send(entries)
    await sender.send(entries)
    assert auditor.records == {"a": make_record("a", runtime=2 * HOUR), **{n: make_record(n) for n in "bcd"}}


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.ERROR, Fault.UNAVAILABLE])
async def test_a_fault_that_does_not_stay_is_overcome(sender: Sender, auditor: FakeAuditor, fault: Fault) -> None:
    faults = cycle([fault, None])
    auditor.fault = lambda method, _target: next(faults) if method == "POST" else None
    await sender.send(inserts("a", "b", "c"))
    await sender.send(inserts("d"))
    assert auditor.records == {name: make_record(name) for name in "abcd"}


async def test_a_silent_server_is_a_passing_fault(auditor: FakeAuditor) -> None:
    auditor.fault = lambda _method, _target: Fault.HANG
    async with open_remote(config(auditor, timeout="200ms"), FakeSenderContext()) as sender:
        with pytest.raises(ConnectionFailed):
            await sender.send(inserts("a"))


async def test_a_program_that_is_no_auditor_is_a_passing_fault(auditor: FakeAuditor) -> None:
    auditor.refuse_with = 302
    async with open_remote(config(auditor), FakeSenderContext()) as sender:
        with pytest.raises(InvalidAnswer, match="redirects are not followed"):
            await sender.send(inserts("a"))


def offered(step: Step) -> list[str] | str:
    return step.close.record_id if isinstance(step, Update) else [pending.record.record_id for pending in step]


def test_steps() -> None:
    running = make_record("open", runtime=None)
    entries: list[Entry] = [*inserts("a", "b"), Insert(running), Close("a", EPOCH), *inserts("a", "c", "a", "d", "e")]
    final = filter(None, map(offered, steps(entries, open_records=False, batch_size=2)))
    assert list(final) == [["a", "b"], "a", ["a", "c"], ["a", "d"], ["e"]]
    every = filter(None, map(offered, steps(entries, open_records=True, batch_size=2)))
    assert list(every) == [["a", "b"], ["open"], "a", ["a", "c"], ["a", "d"], ["e"]]
    (first, *_) = steps([Replace(make_record("x"), "y")], open_records=False, batch_size=9)
    assert first == [PendingRecord(0, make_record("x"), "y", overwrite=True)]


def test_the_kind() -> None:
    kind = REMOTE
    assert (kind.name, kind.config) == ("remote", RemoteConfig)


@pytest.mark.parametrize(
    "options",
    [
        {"url": "far:8000"},
        {"url": "http://me:secret@far"},
        {"url": "http://far", "batch_size": 501},
        {"url": "http://far", "timeout": "0s"},
        {"url": "https://far", "tls": {"key": "/k.pem"}},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        RemoteConfig.model_validate(options)
