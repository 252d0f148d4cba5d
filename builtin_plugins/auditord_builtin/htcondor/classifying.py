"""From ads to a batch: of several ads of a job one makes its record."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from anyio import to_thread

from auditord_builtin.htcondor.ads import JobAd
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import convert_ad, ended_within
from auditord_builtin.htcondor.identity import ad_name, job_name
from auditord_builtin.htcondor.query import Source
from auditord_hookspecs import Batch
from auditord_hookspecs.outcomes import Converted, Outcome, Outcomes, stray
from auditord_hookspecs.wording import counted

REMEMBERED: Final = timedelta(days=8)
"""The memory of an ad that has been dealt with; after that it may be sent again, which changes nothing."""

_COUNTED: Final = " counted"
_SEVERAL: Final = (
    "%s in the history several times, such as %s: the most complete ad counts; auditord records --differences"
)
_AGAIN: Final = "stands in the history again, and says less"


@dataclass
class _Jobs(Outcomes):
    """The outcomes of jobs; those that stand in the history several times, and those that made a record."""

    several: list[str] = field(default_factory=list[str])
    counted: set[str] = field(default_factory=set[str])


async def classify(source: Source, ads: Sequence[JobAd], unreadable: Sequence[str] = ()) -> Batch:
    """A batch of all that is new among the ads, without a checkpoint.

    When a period or a job is collected again, all of it is new.
    """
    config, context = source.config, source.context
    jobs = _by_job(config, ads)
    lines = [stray({"line": line}, f"output that belongs to no job: {line[:80]!r}") for line in unreadable]
    broken = {each.source_id: each for each in lines}
    named = {ad_name(ad, epochs=config.epochs) for ad in ads}
    wanted = [*named, *jobs, *(f"{job}{_COUNTED}" for job in jobs), *broken]
    known = frozenset[str]() if source.again else await context.seen(wanted)
    # In a thread: thousands of ads take seconds, in which the daemon has requests to answer.
    outcomes = await to_thread.run_sync(_convert_all, source, jobs, known)
    outcomes.quarantined += [each for key, each in broken.items() if key not in known]
    if outcomes.several:
        several = counted(len(outcomes.several), "job stands", "jobs stand")
        context.log.warning(_SEVERAL, several, outcomes.several[0])
    new = {*named, *broken, *(f"{job}{_COUNTED}" for job in outcomes.counted)}.difference(known)
    return outcomes.batch(seen=dict.fromkeys(new, context.now() + REMEMBERED))


def most_complete_first(config: HTCondorConfig, ads: Sequence[JobAd]) -> list[JobAd]:
    """The ads in their order, but all of one job together, the one that says most first; of equals, the oldest."""
    return [ad for group in _by_job(config, ads).values() for ad in group]


def _by_job(config: HTCondorConfig, ads: Sequence[JobAd]) -> Mapping[str, Sequence[JobAd]]:
    jobs: dict[str, list[JobAd]] = {}
    for ad in ads:
        jobs.setdefault(job_name(ad, epochs=config.epochs), []).append(ad)
    return {
        job: sorted(group, key=lambda ad: (ad.reason is None, len(ad.row)), reverse=True) for job, group in jobs.items()
    }


def _convert_all(source: Source, jobs: Mapping[str, Sequence[JobAd]], known: Collection[str]) -> _Jobs:
    outcomes, epochs = _Jobs(), source.config.epochs
    for job, ads in jobs.items():
        if job in known:
            continue
        # A history that is read by two names holds each ad twice: of one name the first counts.
        by_name = {name: ad for ad in reversed(ads) if (name := ad_name(ad, epochs=epochs)) not in known}
        new = list(by_name.values())[::-1]
        if len(new) > 1 or (new and f"{job}{_COUNTED}" in known):
            outcomes.several.append(job)
        _convert_job(source.config, outcomes, job, new[:1] if source.again else new, known)
    return outcomes


def _convert_job(
    config: HTCondorConfig, outcomes: _Jobs, job: str, ads: Sequence[JobAd], known: Collection[str]
) -> None:
    """Add the outcome of a job: of several ads one makes its record, the record store lists how the others differ."""
    found = [convert_ad(config, ad) for ad in ads]
    added: list[Outcome] = [one for one in found if isinstance(one, Converted)]
    if added:
        outcomes.counted.add(job)
    elif f"{job}{_COUNTED}" not in known:
        added = found[:1]
    for outcome in added:
        outcomes.add(outcome)
    outcomes.skipped[_AGAIN] += len(found) - len(added)


def wanted_again(source: Source, ads: Iterable[JobAd]) -> Sequence[JobAd]:
    """Those of the ads that are to be collected again: one job's, or a period's."""
    job, window = source.context.job, source.context.window
    if job is not None:
        numbered = ((ad, ad.row.get("ClusterId"), ad.row.get("ProcId")) for ad in ads)
        return [ad for ad, cluster, process in numbered if job.job_id in {cluster, f"{cluster}.{process}"}]
    return [ad for ad in ads if window is None or ended_within(source.config, ad, window)]
