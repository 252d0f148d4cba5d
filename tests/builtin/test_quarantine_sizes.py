"""Quarantined input is stored once, or in proportion to the size of what the source sent."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
import pytest

from auditord.spool import Spool
from auditord_builtin.htcondor.ads import JobAd
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import convert_ad
from auditord_builtin.htcondor.evaluation import Evaluator, read_ads
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_builtin.kubernetes.following import Draft, TrackedPods, read_pods
from auditord_builtin.kubernetes.reading import PodEvent
from auditord_builtin.slurm.collecting import convert_all
from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.conversion import Converter
from auditord_builtin.slurm.epilog.asking import FORGOTTEN, unknown
from auditord_builtin.slurm.epilog.notes import JobNote
from auditord_builtin.slurm.runs import Table, find_runs
from auditord_hookspecs import Batch, Provenance, Quarantined, Window
from tests.builtin.kubernetes.pod_maker import NOW, make_pod, over
from tests.builtin.slurm.test_conversion import ALLOCATION
from tests.quarantined_entries import read_quarantine

ESCAPED: Final = 6
"""JSON writes a control character of one byte with six."""

COLUMNS: Final = 6
"""Rows become objects, with the name of the column beside each value."""

ENTRY: Final = 20_000
"""Bytes for names, reasons and indexes."""

LONG: Final = "\x01" * 1_000_000


def of_sacct() -> Iterator[tuple[int, Sequence[Quarantined]]]:
    """Yield the size and the quarantined jobs of hostile output: a long text, many steps, many lines."""
    converter = Converter(SlurmConfig())
    period = Window(datetime(2023, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC))
    step = {**dict.fromkeys(ALLOCATION, ""), "Cluster": "c1"}
    steps = [{**step, "JobID": f"7.{number}"} for number in range(10_000)]
    for rows in ([{**ALLOCATION, "NCPUS": LONG}], [{**ALLOCATION, "NCPUS": "many"}, *steps]):
        size = sum(len("|".join(row.values())) + 1 for row in rows)
        yield size, convert_all(converter, find_runs(Table(rows, []), period), period.stop, ()).quarantined
    lines = ["", *map(str, range(1_000)), LONG]
    found = find_runs(Table([], lines), period)
    yield sum(map(len, lines)) + 1_000 * 200, convert_all(converter, found, period.stop, ()).quarantined
    yield 10, [*find_runs(Table([], [""] * 100_000), period).quarantined.values()]


def of_pods() -> Iterator[tuple[int, Sequence[Quarantined]]]:
    """Yield the size of a pod with a large, unreadable annotation, and its entry; it comes a hundred times."""
    pod = over(make_pod(), NOW)
    pod["metadata"]["annotations"] = {"a": LONG}
    pod["status"]["startTime"] = "never"
    raw = json.dumps(pod).encode()
    draft = Draft(KubernetesConfig(), TrackedPods({}), (), NOW, Window(NOW - timedelta(days=1), NOW))
    draft.take(read_pods([PodEvent(msgspec.Raw(raw))] * 3), {})
    yield len(raw), draft.outcomes.quarantined


def of_notes() -> Iterator[tuple[int, Sequence[Quarantined]]]:
    """Yield the size of a note with a long variable, and its entry."""
    yield len(LONG), [unknown(JobNote("7.0.job", "7", NOW, {"SLURM_JOB_NAME": LONG}), FORGOTTEN)]


def of_ads() -> Iterator[tuple[int, Sequence[Quarantined]]]:
    """Yield sizes and entries of ads: a long text, attributes that repeat each other, and ads that ran together."""
    pytest.importorskip("classad2", reason="pip install 'auditord[htcondor]'")
    config, name = HTCondorConfig(job_status=()), 'GlobalJobId = "s1#9.0#5"\nClusterId = 9\nProcId = 0\n'
    doubled = "".join(f"A{number + 1} = strcat(A{number}, A{number})\n" for number in range(20))
    texts = (
        f"{name}{LONG}\n",
        f'{name}A0 = "xxxxxxxxxxxxxxxx"\n{doubled}VoName = A20\n',
        name * 2_000,
        name * 10,
    )
    with Evaluator() as evaluator:
        for text in texts:
            ads: list[JobAd] = read_ads(evaluator, text, ["GlobalJobId", "ClusterId", "ProcId", "VoName"])
            found = [convert_ad(config, ad) for ad in ads]
            yield len(text) * min(len(ads), 10), [each for each in found if isinstance(each, Quarantined)]


@pytest.mark.anyio
@pytest.mark.parametrize("sent", [of_sacct, of_pods, of_notes, of_ads])
async def test_a_collector_stores_in_proportion_to_what_it_reads(
    tmp_path: Path, sent: Callable[[], Iterator[tuple[int, Sequence[Quarantined]]]]
) -> None:
    for number, (size, quarantined) in enumerate(sent()):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with Spool.opened(folder, lambda: NOW) as spool:
            assert quarantined
            for _ in range(3):  # the source may be read again
                await spool.enqueue("source", Batch(quarantined=quarantined), [])
            entries = await read_quarantine(spool)
        stored = sum(len(each.raw) + len(each.reason) + len(each.source_id) for each in entries)
        assert stored <= ESCAPED * COLUMNS * size + ENTRY, (number, size, stored)
        assert max(len(each.reason) for each in entries) <= 4_001


@pytest.mark.anyio
async def test_a_refused_body_is_stored_once_and_all_of_them_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord.spool.spool.MAX_BODIES", 10)
    monkeypatch.setattr("auditord.spool.spool.MAX_BODY_BYTES", 3_000_000)
    async with Spool.opened(tmp_path, lambda: NOW) as spool:
        for body in (b"x" * 1_000_000, *(b"y%d" % number for number in range(50))):
            for _ in range(3):
                await spool.keep_refused_body(body, "reason " * 10_000, Provenance(NOW), "POST /record")
        entries = await read_quarantine(spool)
    assert len(entries) == 10
    assert sum(len(each.raw) + len(each.reason) for each in entries) < 100_000
