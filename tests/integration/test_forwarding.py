"""The send loop with a remote destination: whatever goes wrong on the way, in the end it has exactly the set."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditord.client import AsyncClient, Refused
from auditord.spool import Spool
from auditord.tasks.senders import SendLoop
from auditord.testing import FakeSenderContext, make_record
from auditord.testing.daemon import running_daemon
from auditord.testing.records import EPOCH
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_builtin.remote.delivery import REMOTE, RemoteConfig
from auditord_hookspecs import Batch, Close, Entry, Insert, Produced, Provenance, Record, RecordsRejected
from tests.auditord_process import auditord_process
from tests.fake_auditor import FakeAuditor, Fault, fake_auditor

pytestmark = pytest.mark.anyio

HOUR: Final = timedelta(hours=1)
CLIENT: Final = Provenance(EPOCH)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord.tasks.runs.FIRST", timedelta(milliseconds=1))
    monkeypatch.setattr("auditord.tasks.runs.LONGEST", timedelta(milliseconds=10))


class UnusedListener:
    """A listener that nobody asks."""

    def note_sent(self, delivered: int, refused: int) -> None: ...

    def note_fault(self, error: str, failures: int) -> None: ...


async def empty_queue(spool: Spool, url: str, **options: Any) -> None:
    """Work on the queue as the daemon does, until there is nothing left in it."""
    kind = REMOTE
    config = RemoteConfig.model_validate({"url": url, "timeout": "5s", **options})
    loop = SendLoop(
        "far", kind, config, FakeSenderContext(), spool=spool, listener=UnusedListener(), now=now, random=lambda: 0.5
    )
    loop.drain()
    with anyio.fail_after(300):
        await loop.run()


FAULTS = st.lists(
    st.one_of(st.none(), st.sampled_from([fault for fault in Fault if fault is not Fault.HANG])), max_size=30
)
STARTS = [EPOCH, EPOCH + HOUR]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=FAULTS,
    ignore=st.booleans(),
    known=st.dictionaries(st.integers(0, 19), st.sampled_from(STARTS), max_size=5),
    batches=st.lists(st.lists(st.integers(0, 19), max_size=12), min_size=1, max_size=3),
    batch_size=st.integers(1, 9),
)
async def test_whatever_the_faults_the_destination_has_exactly_the_set(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    faults: Sequence[Fault | None],
    ignore: bool,
    known: Mapping[int, datetime],
    batches: Sequence[Sequence[int]],
    batch_size: int,
) -> None:
    with fake_auditor() as auditor:
        auditor.ignore_exists = ignore
        auditor.records = {f"r{n}": make_record(f"r{n}", start=start) for n, start in known.items()}
        before = dict(auditor.records)
        to_come = chain(faults, repeat(None))
        auditor.fault = lambda _method, _target: next(to_come)
        async with Spool.opened(tmp_path_factory.mktemp("spool"), now) as spool:
            for batch in batches:
                await spool.enqueue("jobs", Batch([make_record(f"r{n}") for n in batch]), ["far"])
            await empty_queue(spool, auditor.url, batch_size=batch_size)
            refused = {entry.source_id for entry in await spool.quarantine_summaries()}
        wanted = {f"r{n}" for batch in batches for n in batch}
        others = {name for name, record in before.items() if record.start_time != EPOCH}
        assert refused == wanted & others
        assert auditor.records == before | {name: make_record(name) for name in wanted - others}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS, stops=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=12))
async def test_whatever_the_faults_every_record_ends_with_its_last_stop_time(
    tmp_path_factory: pytest.TempPathFactory, faults: Sequence[Fault | None], stops: Sequence[tuple[int, int]]
) -> None:
    opened = [make_record(f"r{n}", runtime=None) for n in range(5)]
    entries: list[Entry] = [Insert(record) for record in opened]
    expected: dict[str, Record] = {record.record_id: record for record in opened}
    for n, hours in stops:
        entries.append(Close(f"r{n}", EPOCH + hours * HOUR))
        expected[f"r{n}"] = make_record(f"r{n}", runtime=hours * HOUR)
    with fake_auditor() as auditor:
        to_come = chain(faults, repeat(None))
        auditor.fault = lambda _method, _target: next(to_come)
        async with Spool.opened(tmp_path_factory.mktemp("spool"), now) as spool:
            await spool.accept(entries, CLIENT, ["far"])
            await empty_queue(spool, auditor.url, open_records=True)
            assert await spool.quarantine_summaries() == []
        assert auditor.records == expected


async def test_a_hub_with_a_role_for_each_site(tmp_path: Path) -> None:
    """A taken id keeps back no other record: its own second run has another id, and one of another site is refused."""
    roles = {
        f"site_{site}": {"permissions": ["read", "write", "update"], "sites": [site], "rows": {"site_id": [site]}}
        for site in "ab"
    }
    tokens = {site: new_token(site, [f"site_{site}"], now(), None) for site in "ab"}
    (tmp_path / "state").mkdir(mode=0o700)
    TokenFile(tmp_path / "state").change(lambda _: [stored for stored, _ in tokens.values()])
    sections = {"access": {"roles": roles}, "authenticators": {"tokens": {"kind": "tokens"}}}
    with running_daemon(tmp_path, sections) as hub:
        for site, ids in (("a", range(3)), ("b", range(2, 9))):
            runs = [
                Produced(make_record(f"slurm-{n}", start=EPOCH + hour * HOUR, site_id=site), f"slurm-{n}-{site}-{hour}")
                for n in ids
                for hour in (0, 5)
            ]
            (tmp_path / site).mkdir()
            async with Spool.opened(tmp_path / site, now) as spool:
                await spool.enqueue("jobs", Batch(runs), ["far"])
                await empty_queue(spool, hub.url, token=tokens[site][1])
                refused = [entry.source_id for entry in await spool.quarantine_summaries()]
            assert refused == ([] if site == "a" else ["slurm-2", "slurm-2"])
        async with AsyncClient(hub.url, token=tokens["b"][1]) as client, client.stream() as records:
            stored = {record.record_id async for record in records}
    assert stored == {f"slurm-{n}{which}" for n in range(3, 9) for which in ("", "-b-5")}


async def test_records_that_a_hub_forbids(tmp_path: Path) -> None:
    """They go to quarantine if the hub accepts others. If it forbids all, perhaps by mistake, they wait."""
    stored, token = new_token("site", ["site"], now(), None)
    (tmp_path / "state").mkdir(mode=0o700)
    TokenFile(tmp_path / "state").change(lambda _: [stored])
    roles = {"site": {"permissions": ["write", "update"], "sites": ["a"]}}
    sections = {"access": {"roles": roles}, "authenticators": {"tokens": {"kind": "tokens"}}}
    own, others = ({f"{site}-{n}" for n in range(30)} for site in "ab")
    entries = [make_record(name, site_id=name[0]) for name in sorted(own | others, key=lambda name: name[2:])]
    with running_daemon(tmp_path, sections) as hub:
        config = RemoteConfig.model_validate({"url": hub.url, "token": token})
        async with REMOTE.open(config, FakeSenderContext()) as sender:
            with pytest.raises(RecordsRejected) as caught:
                await sender.send([Insert(record) for record in entries])
            assert {entries[at].record_id for at in caught.value.reasons} == others
            assert all("403 Insufficient permissions" in reason for reason in caught.value.reasons.values())
            with pytest.raises(Refused, match="403 Insufficient permissions"):
                await sender.send([Insert(record) for record in entries if record.record_id in others])
            again = [make_record(name, start=EPOCH + HOUR, site_id="a") for name in ("a-1", "a-31")]
            with pytest.raises(RecordsRejected, match="GET"):  # the role lacks read, so the stored run is unknown
                await sender.send([Insert(record) for record in again])


async def test_corrections_at_an_auditord(tmp_path: Path) -> None:
    """It takes another stop time and the end of an open record. It cannot change the content, which is not hidden."""
    first = {name: make_record(name) for name in ("longer", "equal", "content", "old-id")}
    open_one = make_record("open", runtime=None)
    changed = {
        "longer": make_record("longer", runtime=2 * HOUR),
        "content": make_record("content", cores=2),
        "old-id": make_record("old-id", runtime=2 * HOUR),
        "open": make_record("open", cores=2),
        "new": make_record("new"),
    }
    renamed = make_record("new-id", runtime=2 * HOUR)
    with running_daemon(tmp_path, {}) as hub:
        async with Spool.opened(tmp_path, now) as spool:
            await spool.enqueue("jobs", Batch([*first.values(), open_one]), ["far"])
            await empty_queue(spool, hub.url, open_records=True)
            again: list[Record | Produced] = [first["equal"], Produced(renamed, "old-id")]
            again += [changed[name] for name in ("longer", "content", "open", "new")]
            await spool.enqueue("jobs", Batch(again), ["far"], "replace")
            await empty_queue(spool, hub.url, open_records=True)
            assert [entry.source_id for entry in await spool.quarantine_summaries()] == ["content"]
        stored = {record.record_id: record for record in hub.records()}
    assert stored == first | changed | {"content": first["content"]}


async def test_a_server_that_hangs_now_and_then(tmp_path: Path) -> None:
    with fake_auditor() as auditor:
        to_come = chain([Fault.HANG, None, Fault.HANG], repeat(None))
        auditor.fault = lambda _method, _target: next(to_come)
        async with Spool.opened(tmp_path, now) as spool:
            await spool.enqueue("jobs", Batch([make_record(f"r{n}") for n in range(100)]), ["far"])
            await empty_queue(spool, auditor.url, timeout="300ms", batch_size=20)
        assert set(auditor.records) == {f"r{n}" for n in range(100)}


# -- a connection that breaks anywhere ----------------------------------------------------------------------------


class CuttingProxy:
    """A TCP proxy that cuts each connection after a number of bytes, in either direction; then it lets all through.

    Args:
        port: where connections go.
        cuts: after how many bytes each of the first connections is cut.
    """

    def __init__(self, port: int, cuts: Sequence[int]) -> None:
        self._port = port
        self._cuts = chain(cuts, repeat(1 << 60))

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[str, None]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 that is another library's extra
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, self._connect)
            yield f"http://127.0.0.1:{port}"
            group.cancel_scope.cancel()

    async def _connect(self, client: anyio.abc.SocketStream) -> None:
        left = [next(self._cuts)]
        async with (
            client,
            await anyio.connect_tcp("127.0.0.1", self._port) as server,
            anyio.create_task_group() as group,
        ):
            for source, target in ((client, server), (server, client)):
                group.start_soon(self._pump, source, target, left, group.cancel_scope.cancel)

    async def _pump(
        self,
        source: anyio.abc.SocketStream,
        target: anyio.abc.SocketStream,
        left: list[int],
        cut: Callable[[], None],
    ) -> None:
        try:
            async for piece in source:
                await target.send(piece[: left[0]])
                left[0] -= len(piece)
                if left[0] <= 0:
                    break
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        cut()


@pytest.mark.parametrize("server", ["auditord", "auditor"])
async def test_a_connection_that_is_cut_anywhere(tmp_path: Path, server: str) -> None:
    cuts = [*range(1, 40, 3), *range(40, 4_000, 397), 20_000, 60_000]
    far: Any = auditord_process(tmp_path) if server == "auditord" else fake_auditor()
    (tmp_path / "spool").mkdir()
    with far as running:
        url: str = running.url if isinstance(running, FakeAuditor) else running
        async with (
            Spool.opened(tmp_path / "spool", now) as spool,
            CuttingProxy(int(url.rpartition(":")[2]), cuts).listening() as proxy,
        ):
            await spool.enqueue("jobs", Batch([make_record(f"r{n}") for n in range(400)]), ["far"])
            await empty_queue(spool, proxy, batch_size=100)
            assert await spool.quarantine_summaries() == []
        await has_exactly(url, 400)


@pytest.mark.parametrize("size", [5_000, pytest.param(100_000, marks=pytest.mark.benchmark)])
async def test_a_queue_of_weeks_is_sent(tmp_path: Path, size: int) -> None:
    (tmp_path / "spool").mkdir()
    with auditord_process(tmp_path) as url:
        async with Spool.opened(tmp_path / "spool", now) as spool:
            for first in range(0, size, 5_000):
                await spool.enqueue("jobs", Batch([job(n) for n in range(first, first + 5_000)]), ["far"])
            await empty_queue(spool, url)
        await has_exactly(url, size)


def job(number: int) -> Record:
    return make_record(f"r{number}", start=EPOCH + number * timedelta(seconds=20), site_id="S")


async def has_exactly(url: str, count: int) -> None:
    async with AsyncClient(url) as client, client.stream() as records:
        ids = [record.record_id async for record in records]
    assert len(ids) == count
    assert set(ids) == {f"r{number}" for number in range(count)}
