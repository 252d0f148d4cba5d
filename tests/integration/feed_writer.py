"""Add, change and delete records of a store while counts and cells follow, until killed; says how many more there are.

python feed_writer.py STORE SEED
"""

import sys
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from auditord.store import Action, Amendment, Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, Record

START: Final = datetime(2024, 1, 15, tzinfo=UTC)
SLURM: Final = Provenance(START, "task:slurm")
KEYS: Final = ("site_id", "user_id")
AT_ONCE: Final = 20


def job(name: str, random: Random) -> Record:
    start = START + timedelta(hours=random.randrange(2_000))
    meta: dict[str, tuple[str, ...]] = {
        "site_id": (f"S{random.randrange(3)}",),
        "user_id": (f"u{random.randrange(9)}",),
    }
    return Record(name, start, (Component("Cores", random.randrange(1, 9), ()),), start + timedelta(hours=1), meta)


async def fold(store: RecordStore) -> None:
    store.rollups.limits = replace(store.rollups.limits, smallest=7, largest=50, first=7)
    while True:
        await store.rollups.fold()
        await anyio.lowlevel.checkpoint()


async def run(url: str, seed: str) -> None:
    random = Random(seed)  # noqa: S311 no secret
    async with open_store(url, counted_keys=KEYS) as store, anyio.create_task_group() as working:
        working.start_soon(fold, store)
        number = 0
        while True:
            names = [f"job-{seed}-{each:05}" for each in range(number, number + AT_ONCE)]
            await store.add_all([job(name, random) for name in names], SLURM, Duplicates.SAME_RUN, atomic=True)
            print(len(names), flush=True)  # noqa: T201 read by who kills this
            number += AT_ONCE
            record_id = f"job-{seed}-{random.randrange(number):05}"
            wrong = await store.get(record_id)
            if wrong is not None:
                right = job(record_id, random) if random.random() < 0.5 else None
                action = Action.DELETE if right is None else Action.CORRECT
                await store.amend([Amendment(action, wrong, right, "wrong")], SLURM)
                print(-1 if right is None else 0, flush=True)  # noqa: T201 the same


if __name__ == "__main__":
    anyio.run(run, sys.argv[1], sys.argv[2])
