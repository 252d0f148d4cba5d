"""Plays sacct on a cluster where jobs end at a steady pace, each with two steps; a program, run by the collector.

    many_jobs_sacct.py JOBS FIRST_END SECONDS [options of sacct]

JOBS end evenly within the SECONDS from FIRST_END (seconds since 1970) on. It needs next to no memory itself.
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime

CONSTANT = {
    "Cluster": "c1",
    "State": "COMPLETED",
    "User": "alice",
    "UID": "1000",
    "Group": "atlas",
    "GID": "100",
    "Partition": "short",
    "Account": "physics",
    "NodeList": "n01",
    "NCPUS": "4",
    "TotalCPU": "00:03:20",
    "AllocTRES": "billing=4,cpu=4,mem=4096M,node=1",
}
STEPS = {".batch": "10792960", ".0": "92250112"}
USED = {
    "NCPUS": "4",
    "TotalCPU": "01:40.000",
    "TRESUsageInTot": "cpu=00:01:39,energy=0,fs/disk=5273,mem=10792960,pages=0,vmem=10792960",
}


def main(jobs: int, first_end: int, seconds: int, options: dict[str, str]) -> None:
    """Print the jobs that ended within the period asked for, both ends included, as sacct does."""
    start, stop = (_seconds(options[name]) - first_end for name in ("starttime", "endtime"))
    first, last = max(0, -(-start * jobs // seconds)), min(jobs - 1, stop * jobs // seconds)
    steps = {} if "allocations" in options else STEPS
    columns = options["format"].split(",")
    for number in range(first, last + 1):
        end = first_end + number * seconds // jobs
        for row in _rows(str(number + 1), end, steps):
            sys.stdout.write(options["delimiter"].join([row.get(column, "") for column in columns]) + "\n")


def _rows(job_id: str, end: int, steps: dict[str, str]) -> Iterator[dict[str, str]]:
    times = {"Submit": str(end - 90), "Start": str(end - 60), "End": str(end)}
    yield {**CONSTANT, **times, "JobID": job_id, "JobIDRaw": job_id}
    for step, memory in steps.items():
        yield {"Cluster": "c1", **times, **USED, "JobID": job_id + step, "JobIDRaw": job_id + step, "MaxRSS": memory}


def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


if __name__ == "__main__":
    given = (option.removeprefix("--").partition("=") for option in sys.argv[4:])
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), {name: value for name, _, value in given})
