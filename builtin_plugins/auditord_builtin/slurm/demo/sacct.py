"""Fake sacct: prints the recorded output of a real one (Slurm 22.05), for the requested columns and period.

Run as ``python -IS sacct.py``. It understands the options that the collector and ``auditord doctor`` use. The query
selects rows, columns and the delimiter, but recorded texts are printed unchanged. Times are seconds since 1970, as with
``SLURM_TIME_FORMAT=%s``.
"""

import argparse
import calendar
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_SEPARATOR = "\x1f"
_STATES = {"CA": "CANCELLED", "CD": "COMPLETED", "F": "FAILED", "RQ": "REQUEUED", "TO": "TIMEOUT"}  # those recorded


def read_recorded() -> Iterator[dict[str, str]]:
    """Yield all rows as mappings of columns to texts. Only a newline in the last column ends a row."""
    recorded = Path(__file__).with_name("recorded.txt").read_bytes().decode()
    header, text = recorded.split("\n", 1)
    columns = header.split(_SEPARATOR)
    chunks = text.split(_SEPARATOR)
    first = chunks[0]
    for end in range(len(columns) - 1, len(chunks), len(columns) - 1):
        last, following = chunks[end].split("\n", 1)
        texts = (first, *chunks[end - len(columns) + 2 : end], last)
        yield dict(zip(columns, texts, strict=True))
        first = following


def choose_rows(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yield the allocations that ended within the period in one of the states, each followed by its steps."""
    states = {_STATES.get(state, state) for state in options.state.split(",")} if options.state else None
    start, stop = _parse_time(options.starttime), _parse_time(options.endtime)
    chosen = False
    for row in read_recorded():
        is_step = "." in row["JobID"]
        if not is_step:
            chosen = start <= int(row["End"]) <= stop and (not states or row["State"].split(" ")[0] in states)
        if chosen and not (is_step and options.allocations):
            yield row


def _parse_time(text: str) -> int:
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def parse_arguments() -> argparse.Namespace:
    """Parse the options of sacct that the collector and ``auditord doctor`` use."""
    parser = argparse.ArgumentParser(prog="sacct", description=__doc__, allow_abbrev=False)
    for flag in ("allusers", "duplicates", "noheader", "noconvert", "parsable2", "allocations", "allclusters"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--version", action="version", version="slurm 22.05")
    parser.add_argument("--helpformat", action="store_true")
    for option in ("delimiter", "format", "starttime", "endtime", "state", "clusters"):
        parser.add_argument(f"--{option}", default="")
    return parser.parse_args()


def main() -> None:
    """Print the rows, or exit with sacct's error message."""
    options = parse_arguments()
    if options.helpformat:
        print(*next(read_recorded()))  # noqa: T201 the output
        return
    columns = options.format.split(",")
    for row in choose_rows(options):
        if unknown := [column for column in columns if column not in row]:
            sys.exit(f'sacct: error: Invalid field requested: "{unknown[0]}"')
        sys.stdout.buffer.write(options.delimiter.join(row[column] for column in columns).encode() + b"\n")


if __name__ == "__main__":
    main()
