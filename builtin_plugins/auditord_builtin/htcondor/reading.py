"""The position in a schedd's history, its answer from there on, and whether that has a gap.

A position is made of the names of the newest ads, and not of a job number or a time: history files grow at one end, in
the order in which jobs leave the queue. So what lies before a known ad is new, and what lies behind it has been read.

``condor_history`` ends with exit code 0 also when the schedd has stopped at its ``HISTORY_HELPER_MAX_HISTORY``: the
newest ads came, and nothing tells that older ones did not. So an answer must prove that it is whole:

1. it holds an ad that an earlier whole answer held (ads come newest first, so nothing is missing before that one), or
2. the oldest ad of the history, asked for separately, is its last one, or it is shorter than any limit, or
3. its last hundred ads were all over long before the time of interest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from auditord_builtin.htcondor.ads import JobAd
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import ended_before
from auditord_builtin.htcondor.identity import ad_name, can_stop, without_time
from auditord_builtin.htcondor.isolating import run_query_around
from auditord_builtin.htcondor.query import Query, Source
from auditord_hookspecs import Batch

ANCHORS: Final = 50
"""The ads that are remembered. An answer that holds one of them has no gap; the last one is where it may stop."""

_WITNESSES: Final = 100

_GAP: Final = (
    "its answer may have a gap, since it does not reach what was read before: raise HISTORY_HELPER_MAX_HISTORY there "
    "(or scan_limit and helper_max_history here), or read its files with history_paths; what came was accounted for"
)
_EMPTY: Final = "its history is empty, and was not; if that is right, this is over when the next job leaves its queue"


class Position(msgspec.Struct, frozen=True):
    """The position in one schedd's history.

    Args:
        earliest: jobs that were over before, and were in the history at the first reading, are never looked at.
        anchors: names of the newest ads, the newest first; versions before 0.2 wrote names of jobs.
        until: the last reading without a gap; None as long as there was none.
    """

    earliest: datetime
    anchors: tuple[str, ...] = ()
    until: datetime | None = None

    @property
    def first(self) -> bool:
        """True as long as nothing has been read."""
        return self.until is None

    def after(self, names: Sequence[str], now: datetime) -> "Position":
        """All that was in the history has been read; these are the ads of the answer, the newest first.

        A history without any ad is none yet: an answer that was cut before its first byte looks the same.
        """
        anchors = tuple(dict.fromkeys((*names, *self.anchors)))[:ANCHORS]
        return Position(self.earliest, anchors, now if anchors else None)


class Checkpoint(msgspec.Struct, frozen=True):
    """The state between runs.

    Args:
        schedds: positions by the name of the schedd.
        files: for history files, how many bytes of each were read, by its first ad's fingerprint.
        earliest: for history files, what it is in a position.
        caught_up: for history files, whether all that there was at first has been read.
        current: for history files, the fingerprint of the one that was being written, by its path.
    """

    schedds: dict[str, Position]
    files: dict[str, int] = {}
    earliest: datetime | None = None
    caught_up: bool = False
    current: dict[str, str] = {}

    def batch(self, batch: Batch | None = None) -> Batch:
        """The batch with this checkpoint."""
        return replace(batch or Batch(), checkpoint=msgspec.to_builtins(self))

    def with_schedd(self, name: str, position: Position) -> "Checkpoint":
        """The positions with another one for a schedd."""
        return msgspec.structs.replace(self, schedds={**self.schedds, name: position})


@dataclass(frozen=True, slots=True)
class Answer:
    """A schedd's answer.

    Args:
        ads: those that are to be looked at, the newest first.
        unreadable: lines that belong to no ad.
        names: those of all ads of the answer, the newest first.
        doubt: why something may be missing of what the history holds; None if nothing can be.
        replaced: whether it holds nothing that was read before: rotated too far, or begun anew.
    """

    ads: Sequence[JobAd]
    unreadable: Sequence[str]
    names: Sequence[str]
    doubt: str | None
    replaced: bool = False


async def read_new(source: Source, schedd: str, position: Position) -> Answer:
    """Read what has come into the history since the position."""
    config = source.config
    only_newest = position.first and position.earliest >= source.context.now() - timedelta(seconds=1)
    query = Query(schedd, _stop(position), ANCHORS if only_newest else None)
    printed = await run_query_around(source, query)
    ads, names = printed.ads, names_of(config, printed.ads)
    place = _place(names, position)
    if place is not None:
        return Answer(ads[:place], printed.unreadable, names, doubt=None)
    if position.first:
        # Not those alone that ended since then: a job may stay in the queue for days after its end, and come late.
        within = [number for number, ad in enumerate(ads, 1) if not ended_before(config, ad, position.earliest)]
        ads = ads[: max(within, default=0)]
    if not names and position.anchors:  # also what is left of an answer that was cut before its first byte
        return Answer(ads, printed.unreadable, names, _EMPTY)
    whole = only_newest or await _reaches(source, schedd, printed.ads, position.until or position.earliest)
    return Answer(ads, printed.unreadable, names, None if whole else _GAP, replaced=bool(position.anchors))


def _place(names: Sequence[str], position: Position) -> int | None:
    """The place of the newest ad that was read before."""
    known = set(position.anchors)
    return next((n for n, name in enumerate(names) if name in known or without_time(name) in known), None)


def _stop(position: Position) -> str | None:
    """The last ad that is remembered, so that the others show up; none if there are no others."""
    usable = [name for name in position.anchors if can_stop(name)]
    return usable[-1] if len(usable) > 1 else None


async def read_all(source: Source, schedd: str, since: datetime) -> Answer:
    """Read the whole history, as far as it matters for jobs that ended since then."""
    printed = await run_query_around(source, Query(schedd))
    whole = await _reaches(source, schedd, printed.ads, since)
    return Answer(printed.ads, printed.unreadable, names_of(source.config, printed.ads), None if whole else _GAP)


def names_of(config: HTCondorConfig, ads: Sequence[JobAd]) -> list[str]:
    """The names of the ads."""
    return [ad_name(ad, epochs=config.epochs) for ad in ads]


async def _reaches(source: Source, schedd: str, ads: Sequence[JobAd], moment: datetime) -> bool:
    """True if the answer goes back to the moment, or to the beginning of the history."""
    witnesses, before = ads[-_WITNESSES:], moment - source.config.overlap
    if len(witnesses) == _WITNESSES and all(ended_before(source.config, ad, before) for ad in witnesses):
        return True
    return await _is_everything(source, schedd, ads)


async def _is_everything(source: Source, schedd: str, ads: Sequence[JobAd]) -> bool:
    """True if the history holds no more than these ads.

    A schedd that does not understand "oldest first" answers with its newest ad; then only the number tells.
    """
    probe = (await run_query_around(source, Query(schedd, limit=1, oldest_first=True))).ads
    if not ads or not probe:
        return not ads and not probe
    names = names_of(source.config, ads)
    found = names_of(source.config, probe)[0]
    if found == names[-1]:
        return True
    misunderstood = found == names[0] or (found not in names and _entered(probe[0]) > _entered(ads[0]))
    return misunderstood and len(ads) < source.config.helper_max_history


def _entered(ad: JobAd) -> int:
    text = ad.row.get("EnteredCurrentStatus", "")
    return int(text) if text.isdecimal() else 0
