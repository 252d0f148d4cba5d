"""From ads to a batch."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from anyio import to_thread

from auditord_builtin.htcondor.ads import JobAd
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import Converted, Skipped, convert_ad, ended_at
from auditord_builtin.htcondor.identity import ad_name, job_name
from auditord_hookspecs import Batch, CollectorContext, InvalidRecord, Quarantined, Record, Window

REMEMBERED: Final = timedelta(days=8)
"""How long it is known that an ad has been dealt with; after that it may be sent again, which changes nothing."""

_COUNTED: Final = " counted"
_AGAIN: Final = "stands in the history again, and says less"


@dataclass
class _Classified:
    """The outcome of some ads, as it grows."""

    records: list[Record] = field(default_factory=list[Record])
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    skipped: Counter[str] = field(default_factory=Counter[str])
    left_out: list[str] = field(default_factory=list[str])
    several: list[str] = field(default_factory=list[str])
    counted: set[str] = field(default_factory=set[str])


async def classify(
    config: HTCondorConfig, context: CollectorContext, ads: Sequence[JobAd], unreadable: Sequence[str] = ()
) -> Batch:
    """A batch of all that is new among the ads, without a checkpoint.

    When a period or a job is collected again, all of it is new.
    """
    again = context.window is not None or context.job is not None
    jobs = _by_job(config, ads)
    broken = {_fingerprint(line): line for line in unreadable}
    named = {ad_name(ad, epochs=config.epochs) for ad in ads}
    wanted = [*named, *jobs, *(f"{job}{_COUNTED}" for job in jobs), *broken]
    known = frozenset[str]() if again else await context.seen(wanted)
    # In a thread: thousands of ads take seconds, in which the daemon has requests to answer.
    classified = await to_thread.run_sync(_classified, config, jobs, known, again)
    classified.quarantined += [_stray(key, line) for key, line in broken.items() if key not in known]
    _say(context, classified)
    new = {*named, *broken, *(f"{job}{_COUNTED}" for job in classified.counted)}.difference(known)
    return Batch(
        records=classified.records,
        quarantined=classified.quarantined,
        skipped=dict(+classified.skipped),
        seen=dict.fromkeys(new, context.now() + REMEMBERED),
    )


def most_complete_first(config: HTCondorConfig, ads: Sequence[JobAd]) -> list[JobAd]:
    """The ads in their order, but all of one job together, the one that says most first; of equals, the oldest."""
    return [ad for group in _by_job(config, ads).values() for ad in group]


def _by_job(config: HTCondorConfig, ads: Sequence[JobAd]) -> Mapping[str, Sequence[JobAd]]:
    jobs: dict[str, list[JobAd]] = {}
    for ad in ads:
        jobs.setdefault(job_name(ad, epochs=config.epochs), []).append(ad)
    return {job: sorted(group, key=_completeness, reverse=True) for job, group in jobs.items()}


def _completeness(ad: JobAd) -> tuple[bool, int]:
    return ad.reason is None, len(ad.row)


def _classified(
    config: HTCondorConfig,
    jobs: Mapping[str, Sequence[JobAd]],
    known: Collection[str],
    again: bool,  # noqa: FBT001 passed through a thread by position
) -> _Classified:
    classified = _Classified()
    for job, ads in jobs.items():
        new = (
            [] if job in known else _once(config, [ad for ad in ads if ad_name(ad, epochs=config.epochs) not in known])
        )
        if len(new) > 1 or (new and f"{job}{_COUNTED}" in known):
            classified.several.append(job)
        _classify_job(config, classified, job, new[:1] if again else new, is_counted=f"{job}{_COUNTED}" in known)
    return classified


def _once(config: HTCondorConfig, ads: Sequence[JobAd]) -> list[JobAd]:
    """Of several ads of one name the first: a history that is read by two names holds each ad twice."""
    return list({ad_name(ad, epochs=config.epochs): ad for ad in reversed(ads)}.values())[::-1]


def _classify_job(
    config: HTCondorConfig, classified: _Classified, job: str, ads: Sequence[JobAd], *, is_counted: bool
) -> None:
    """The outcome of a job: of several ads one makes its record, the record store lists how the others differ."""
    outcomes = [convert_ad(config, ad) for ad in ads]
    converted = [one for one in outcomes if isinstance(one, Converted)]
    if converted:
        classified.records += [one.record for one in converted]
        classified.left_out += [f"{one.record.record_id}: {reason}" for one in converted for reason in one.left_out]
        classified.counted.add(job)
    first = None if converted or is_counted or not outcomes else outcomes[0]
    if isinstance(first, Skipped):
        classified.skipped[first.reason] += 1
    elif isinstance(first, Quarantined):
        classified.quarantined.append(first)
    classified.skipped[_AGAIN] += len(outcomes) - len(converted) - (first is not None)


def _say(context: CollectorContext, classified: _Classified) -> None:
    """One line for each kind of remark and not one per job: users write what labels are made of."""
    if classified.left_out:
        context.log.warning("labels left out: %d, such as %s", len(classified.left_out), classified.left_out[0])
    if classified.several:
        context.log.warning(
            "%d jobs stand in the history several times, such as %s: the most complete ad counts; "
            "auditord records --differences",
            len(classified.several),
            classified.several[0],
        )


def _fingerprint(line: str) -> str:
    return f"stray/{hashlib.sha256(line.encode()).hexdigest()[:16]}"


def _stray(key: str, line: str) -> Quarantined:
    return Quarantined(key, {"line": line}, f"output that belongs to no job: {line[:80]!r}")


def wanted_again(config: HTCondorConfig, context: CollectorContext, ads: Iterable[JobAd]) -> Sequence[JobAd]:
    """Those of the ads that are to be collected again: one job's, or a period's."""
    job, window = context.job, context.window
    if job is not None:
        return [ad for ad in ads if job.job_id in {ad.row.get("ClusterId"), _job_id(ad)}]
    return [ad for ad in ads if window is None or ended_within(config, ad, window)]


def _job_id(ad: JobAd) -> str:
    return f"{ad.row.get('ClusterId')}.{ad.row.get('ProcId')}"


def ended_within(config: HTCondorConfig, ad: JobAd, window: Window) -> bool:
    """Whether the job ended within the window; also if its end is unknown or unreadable, or nobody would look."""
    try:
        end = ended_at(config, ad.row)
    except InvalidRecord:
        return True
    return end is None or window.start <= end < window.stop
