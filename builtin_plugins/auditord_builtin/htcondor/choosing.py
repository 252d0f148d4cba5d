"""Choose among several ads of a job, and make batches of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from anyio import to_thread

from auditord_builtin.htcondor.ads import JobAd, ad_name, job_name
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import convert_ad, ends_within
from auditord_builtin.htcondor.query import Source
from auditord_hookspecs import Batch
from auditord_hookspecs.outcomes import Converted, Outcome, Outcomes, stray
from auditord_hookspecs.wording import counted

REMEMBERED: Final = timedelta(days=8)
"""The time for which a processed ad is remembered. After that it may be sent again, which is a no-op."""

_COUNTED: Final = " counted"

_SEVERAL: Final = (
    "%s in the history several times, such as %s: the most complete ad counts; see auditord records --differences"
)

_AGAIN: Final = "is in the history again, with fewer attributes"


@dataclass
class _Jobs(Outcomes):
    """The outcomes of jobs, the jobs with several ads in the history, and the jobs that made a record."""

    several: list[str] = field(default_factory=list[str])
    counted: set[str] = field(default_factory=set[str])


async def classify(source: Source, ads: Sequence[JobAd], unreadable: Sequence[str] = ()) -> Batch:
    """Return a batch of all new ads, without a checkpoint.

    When a job or a window is collected again, all ads count as new.
    """
    config, context = source.config, source.context
    jobs = _by_job(config, ads)
    lines = [stray({"line": line}, f"output that belongs to no job: {line[:80]!r}") for line in unreadable]
    broken = {each.source_id: each for each in lines}
    named = {ad_name(ad, epochs=config.epochs) for ad in ads}
    wanted = [*named, *(f"{job}{_COUNTED}" for job in jobs), *broken]
    known = frozenset[str]() if source.again else await context.find_seen(wanted)
    # In a thread, since thousands of ads take seconds, and the daemon must answer requests meanwhile.
    outcomes = await to_thread.run_sync(_convert_all, source, jobs, known)
    outcomes.quarantined += [each for key, each in broken.items() if key not in known]
    if outcomes.several:
        several = counted(len(outcomes.several), "job is", "jobs are")
        context.log.warning(_SEVERAL, several, outcomes.several[0])
    new = {*named, *broken, *(f"{job}{_COUNTED}" for job in outcomes.counted)}.difference(known)
    return outcomes.batch(seen=dict.fromkeys(new, context.now() + REMEMBERED))


def most_complete_first(config: HTCondorConfig, ads: Sequence[JobAd]) -> list[JobAd]:
    """Return the ads grouped by job, each job's most complete ad first. Jobs and equal ads keep their order."""
    return [ad for group in _by_job(config, ads).values() for ad in group]


def _by_job(config: HTCondorConfig, ads: Sequence[JobAd]) -> Mapping[str, Sequence[JobAd]]:
    jobs: dict[str, list[JobAd]] = {}
    for ad in ads:
        jobs.setdefault(job_name(ad, epochs=config.epochs), []).append(ad)
    stopgaps = frozenset(config.requests.values())  # an ad has these if it lacks other attributes
    return {
        job: sorted(group, key=lambda ad: (ad.reason is None, len(ad.row.keys() - stopgaps)), reverse=True)
        for job, group in jobs.items()
    }


def _convert_all(source: Source, jobs: Mapping[str, Sequence[JobAd]], known: Collection[str]) -> _Jobs:
    """Return all records of each job. The store keeps the first and lists how the others differ."""
    outcomes, epochs = _Jobs(), source.config.epochs
    for job, ads in jobs.items():
        # A history that is read under two names contains each ad twice. The first ad of each name counts.
        by_name = {name: ad for ad in reversed(ads) if (name := ad_name(ad, epochs=epochs)) not in known}
        new = list(by_name.values())[::-1]
        if len(new) > 1 or (new and f"{job}{_COUNTED}" in known):
            outcomes.several.append(job)
        found = [convert_ad(source.config, ad) for ad in (new[:1] if source.again else new)]
        added: list[Outcome] = [outcome for outcome in found if isinstance(outcome, Converted)]
        if added:
            outcomes.counted.add(job)
        elif f"{job}{_COUNTED}" not in known:
            added = found[:1]
        for outcome in added:
            outcomes.add(outcome)
        outcomes.skipped[_AGAIN] += len(found) - len(added)
    return outcomes


def select_ads(source: Source, ads: Iterable[JobAd]) -> Sequence[JobAd]:
    """Return the ads of the job or window to collect again."""
    job, window = source.context.job, source.context.window
    if job is not None:
        numbered = ((ad, ad.row.get("ClusterId"), ad.row.get("ProcId")) for ad in ads)
        return [ad for ad, cluster, process in numbered if job.job_id in {cluster, f"{cluster}.{process}"}]
    return [ad for ad in ads if window is None or ends_within(source.config, ad, window)]
