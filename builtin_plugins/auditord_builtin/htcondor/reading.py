"""Read the history of a schedd since a position, with ``condor_history``."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from auditord_builtin.htcondor.ads import JobAd, ad_name, can_stop
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import ends_before
from auditord_builtin.htcondor.query import Query, Source, run_query_around
from auditord_hookspecs import Batch

ANCHORS: Final = 50
"""The number of ads to remember. An answer that contains one of them has no gap, and may stop at the last one."""

_WITNESSES: Final = 100

_FEWEST_READ: Final = 10_000
"""The number of ads that a schedd reads at least: the lowest default of HISTORY_HELPER_MAX_HISTORY."""

_GAP: Final = (
    "its answer may have a gap, since it does not reach the last ads that were read: raise HISTORY_HELPER_MAX_HISTORY"
    " there, or read its files with history_paths; the jobs of the answer were accounted for"
)

_EMPTY: Final = (
    "its history is empty, but was not before; if that is right, this error stops when the next job leaves its queue"
)


class Position(msgspec.Struct, frozen=True):
    """The position in one schedd's history.

    Args:
        earliest: jobs that ended before this are ignored if the first reading finds them.
        anchors: names of the newest ads, newest first.
        until: the time of the last reading without a gap; None if there was none.
    """

    earliest: datetime
    anchors: tuple[str, ...] = ()
    until: datetime | None = None

    @property
    def first(self) -> bool:
        """True until a reading without a gap."""
        return self.until is None

    def after(self, names: Sequence[str], now: datetime) -> "Position":
        """Return the position after a complete reading. ``names`` are the names of the answer's ads, newest first.

        An empty history does not count as read, since an answer that was truncated to nothing looks the same.
        """
        anchors = tuple(dict.fromkeys((*names, *self.anchors)))[:ANCHORS]
        return Position(self.earliest, anchors, now if anchors else None)


class Checkpoint(msgspec.Struct, frozen=True):
    """The state between runs. Only ``schedds`` is used without ``history_paths``.

    Args:
        schedds: the position in each schedd's history, by name.
        files: the number of bytes read of each file, by the fingerprint of the file's first ad.
        earliest: as in a position.
        current: the fingerprint of the file to which HTCondor was appending, by path, once a run has read all files to
            their ends.
    """

    schedds: dict[str, Position]
    files: dict[str, int] = {}
    earliest: datetime | None = None
    current: dict[str, str] = {}

    def batch(self, batch: Batch | None = None) -> Batch:
        """Return the batch, or an empty one, with this checkpoint."""
        return replace(batch or Batch(), checkpoint=msgspec.to_builtins(self))

    def with_schedd(self, name: str, position: Position) -> "Checkpoint":
        """Return a copy of the checkpoint with a schedd's new position."""
        return msgspec.structs.replace(self, schedds={**self.schedds, name: position})


class Answer(msgspec.Struct, frozen=True):
    """A schedd's answer.

    Args:
        ads: the ads to process, newest first.
        unreadable: lines that belong to no ad.
        names: the names of all ads in the answer, newest first.
        doubt: why the answer may be incomplete; None if it is complete.
        replaced: True if the answer contains no ad that was read before, because the history was rotated or restarted.
    """

    ads: Sequence[JobAd]
    unreadable: Sequence[str]
    names: Sequence[str]
    doubt: str | None
    replaced: bool = False


async def read_new(source: Source, schedd: str, position: Position) -> Answer:
    """Read the ads that were added to the history since the position."""
    config = source.config
    only_newest = position.first and position.earliest >= source.context.now() - timedelta(seconds=1)
    # Stop at the oldest usable anchor, so that the answer contains the newer ones.
    usable = [name for name in position.anchors if can_stop(name)]
    query = Query(schedd, usable[-1] if len(usable) > 1 else None, ANCHORS if only_newest else None)
    printed = await run_query_around(source, query)
    if query.stop_at is not None:
        newer = position.anchors[: position.anchors.index(query.stop_at)]
        if not set(names_of(config, printed.ads)).issuperset(newer):  # a copy of the anchor may have ended the answer
            printed = await run_query_around(source, replace(query, stop_at=None))
    ads, names = printed.ads, names_of(config, printed.ads)
    # New ads can be on both sides of a known one: a schedd that crashed appends the same ad again, after other jobs.
    anchors = set(position.anchors)
    known = {place for place, name in enumerate(names) if name in anchors}
    if known:
        new = [ad for place, ad in enumerate(ads[: max(known)]) if place not in known]
        return Answer(new, printed.unreadable, names, doubt=None)
    if position.first:
        # Do not filter each ad by its end, since a job can stay in the queue for days after it ended.
        within = [number for number, ad in enumerate(ads, 1) if not ends_before(config, ad, position.earliest)]
        ads = ads[: max(within, default=0)]
    if not names and position.anchors:  # an answer that was truncated to nothing looks the same
        return Answer(ads, printed.unreadable, names, _EMPTY)
    if position.first:
        whole = only_newest or await _reaches(source, schedd, printed.ads, position.earliest)
    else:  # the ends of its jobs prove nothing: an answer that follow_references so far back would contain an anchor
        whole = await _is_everything(source, schedd, printed.ads)
    return Answer(ads, printed.unreadable, names, None if whole else _GAP, replaced=bool(position.anchors))


async def read_all(source: Source, schedd: str, since: datetime) -> Answer:
    """Read the whole history. ``doubt`` is set if it may not reach back to ``since``."""
    printed = await run_query_around(source, Query(schedd))
    whole = await _reaches(source, schedd, printed.ads, since)
    return Answer(printed.ads, printed.unreadable, names_of(source.config, printed.ads), None if whole else _GAP)


def names_of(config: HTCondorConfig, ads: Sequence[JobAd]) -> list[str]:
    """Return the ads' names, in the same order."""
    return [ad_name(ad, epochs=config.epochs) for ad in ads]


async def _reaches(source: Source, schedd: str, ads: Sequence[JobAd], moment: datetime) -> bool:
    """Return True if the answer reaches back to ``moment``, or to the beginning of the history."""
    witnesses, before = ads[-_WITNESSES:], moment - source.config.overlap
    if len(witnesses) == _WITNESSES and all(ends_before(source.config, ad, before) for ad in witnesses):
        return True
    return await _is_everything(source, schedd, ads)


async def _is_everything(source: Source, schedd: str, ads: Sequence[JobAd]) -> bool:
    """Return True if the history contains only these ads.

    A schedd that does not support ``oldest_first`` returns its newest ad. Then only the number of ads decides.
    """
    probe = (await run_query_around(source, Query(schedd, limit=1, oldest_first=True))).ads
    if not ads or not probe:
        return not ads and not probe
    names = names_of(source.config, ads)
    found = names_of(source.config, probe)[0]
    if found == names[-1]:
        return True
    misunderstood = found == names[0] or (found not in names and _status_time(probe[0]) > _status_time(ads[0]))
    return misunderstood and len(ads) < _FEWEST_READ


def _status_time(ad: JobAd) -> int:
    text = ad.row.get("EnteredCurrentStatus", "")
    return int(text) if text.isdecimal() else 0
