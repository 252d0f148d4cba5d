"""Recorded output and files of a pool of HTCondor 24.0.23 (``recorded/``), and the ledger of its jobs."""

import csv
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from auditord_hookspecs import Record

FOLDER = Path(__file__).with_name("recorded")
WORD = "_00112233aabbccdd_"
POISON = "long_poison_evalInEachContext_ad_prints_but_af_VoName_crashes"
THRICE = "long_thrice_in_history_after_schedd_crash"


def recorded(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def recorded_ads(name: str) -> list[str]:
    """The ads that -long printed, the newest first."""
    return [ad.strip("\n") + "\n" for ad in recorded(f"{name}.out").decode().split("\n\n") if ad.strip()]


def in_history(*ads: str) -> str:
    """Ads as a history file has them."""
    return "".join(f'{ad}*** Offset = 0 ClusterId = 1 ProcId = 0 Owner = "x" CompletionDate = 1\n' for ad in ads)


def columns_asked(name: str) -> list[str]:
    """The columns of a recorded call of -af."""
    line = recorded(f"{name}.cmd").decode().split("\n")[0]
    arguments = shlex.split(line.removeprefix("$ "))
    return [each for each in arguments[arguments.index("-af") + 1 :] if each != WORD]


@dataclass(frozen=True)
class LedgerLine:
    """A line of the ledger: times in seconds since 1970, memory in MiB, CPU time in seconds."""

    job: str
    outcome: str
    figures: tuple[str, ...]


def ledger(*recordings: str) -> dict[str, LedgerLine]:
    """The jobs of the recordings; of all, if none is named."""
    with (FOLDER / "ledger.csv").open(newline="") as file:
        rows = [row for row in csv.reader(file) if not recordings or row[0] in recordings]
    return {row[1]: LedgerLine(row[1], row[2], tuple(row[3:])) for row in rows}


def figures(record: Record) -> tuple[str, ...]:
    """A record's figures as the ledger writes them."""
    amounts = {component.name: str(component.amount) for component in record.components}
    stop = "" if record.stop_time is None else str(int(record.stop_time.timestamp()))
    group: Sequence[str] = (record.meta or {}).get("group_id", ("",))
    start = str(int(record.start_time.timestamp()))
    return (start, stop, *(amounts.get(name, "") for name in ("Cores", "Memory", "GPU", "TotalCPU")), group[0])
