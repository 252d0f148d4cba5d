"""Jobs for tests of the utilisation report, among them those of AUDITOR's own check of its plugin."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from auditord_hookspecs import Component, Record, Score

JANUARY: Final = datetime(2026, 1, 1, tzinfo=UTC)


def job(
    record_id: str,
    amounts: Mapping[str, int],
    *,
    stop: datetime = JANUARY + timedelta(days=10),
    seconds: int = 3600,
    score: float | None = None,
    **meta: str,
) -> Record:
    """A job that ended; ``score`` is the HEPscore23 of its cores."""
    scores = () if score is None else (Score("HEPscore23", score),)
    components = [Component(name, amount, scores if name == "Cores" else ()) for name, amount in amounts.items()]
    named: dict[str, tuple[str, ...]] = {key: (value,) for key, value in meta.items()}
    return Record(record_id, stop - timedelta(seconds=seconds), tuple(components), stop, named or None)


def auditors_jobs() -> Sequence[Record]:
    """Four jobs of two VOs: 177.6 core hours of atlas's production role, 5.1 of ilc."""
    production, ilc = "/atlas/Role=production/Capability=NULL", "/ilc/Role=NULL/Capability=NULL"
    large, small = {"Cores": 8, "TotalCPU": 324_976}, {"Cores": 1, "TotalCPU": 11_042}
    return [
        *[job(name, large, seconds=39_964, score=18.4, VOMS=production, site="A") for name in ("p1", "p2")],
        *[job(name, small, seconds=9_259, score=18.4, VOMS=ilc, site="A") for name in ("i1", "i2")],
    ]


def mixed_jobs() -> Sequence[Record]:
    """Jobs of two sites, three groups and four users; of many nobody knows everything."""
    day = timedelta(days=1)
    return [
        *auditors_jobs(),
        job("small", {"Cores": 1, "TotalCPU": 3_600}, site_id="A", group_id="physics", user_id="ann"),
        job("large", {"Cores": 100, "TotalCPU": 0}, seconds=360_000, site_id="A", group_id="physics", user_id="bob"),
        job("untimed", {"Cores": 4}, seconds=7_200, site_id="B", group_id="chemistry", user_id="cat"),
        job("gpu", {"Cores": 2, "GPU": 4, "TotalCPU": 1_800}, site_id="B", group_id="chemistry", user_id="cat"),
        job(
            "known",
            {"Cores": 2, "TotalCPU": 3_600, "Memory": 4_096, "MaxRSS": 2**30, "Energy": 7_200_000},
            site_id="B",
            group_id="chemistry",
            user_id="dan",
        ),
        job("peak alone", {"Cores": 1, "MaxRSS": 2**40}, site_id="B", user_id="dan"),
        job("bare", {}, site_id="B"),
        job("coreless", {"TotalCPU": 5_000}, site_id="B", group_id="physics"),
        job("december", {"Cores": 1_000}, stop=JANUARY - timedelta(microseconds=1), site_id="A"),
        job("new year", {"Cores": 1, "TotalCPU": 60}, stop=JANUARY, seconds=86_400, site_id="B"),
        job("last", {"Cores": 1}, stop=JANUARY + 31 * day - timedelta(microseconds=1), site_id="B", user_id="dan"),
        job("february", {"Cores": 1_000}, stop=JANUARY + 31 * day, site_id="A"),
        job("backwards", {"Cores": 1_000}, seconds=-60, site_id="A"),
    ]
