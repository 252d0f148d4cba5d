"""The findings of ``auditord import``, for people on the terminal and for programs in a file."""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from auditord.cli.tables import new_table, print_table
from auditord.errors import ConfigurationError
from auditord.importing.comparing import Compared, RowProblem, RowState
from auditord_hookspecs import Table
from auditord_hookspecs.terminal import say
from auditord_hookspecs.wording import counted

_SHOWN: Final = 50
_TEXT_BYTES: Final = 300


class Findings:
    """Shows the first problems, keeps all of them in a file if there is one, and counts.

    Args:
        missing_is_news: whether it is a problem that the store lacks a record; not in a dry run.
    """

    def __init__(self, file: BinaryIO | None, *, missing_is_news: bool) -> None:
        self._file = file
        self._expected = set[RowState]() if missing_is_news else {RowState.MISSING, RowState.STILL_OPEN}
        self.count = 0

    @classmethod
    @contextmanager
    def to(cls, path: Path | None, *, missing_is_news: bool) -> Generator["Findings", None, None]:
        """With a file at the path, if there is one.

        Raises:
            ConfigurationError: it cannot be written.
        """
        if path is None:
            yield cls(None, missing_is_news=missing_is_news)
            return
        try:
            file = path.open("wb")
        except OSError as error:
            raise ConfigurationError(f"--problems {path}: {error.strerror}") from error
        with file:
            yield cls(file, missing_is_news=missing_is_news)

    def add(self, problem: RowProblem) -> None:
        """Take one problem up."""
        if problem.finding in self._expected:
            return
        self.count += 1
        if self._file is not None:
            self._file.write(_line(problem))
        if self.count <= _SHOWN:
            say(f"{problem.finding.value}: {problem.where}: {problem.reason}", err=True)
            say(f"  source: {_short(problem.source)}", err=True)
            if problem.stored is not None:
                say(f"  stored: {_short(problem.stored)}", err=True)

    @property
    def unseen(self) -> int:
        """The number of those that have not been shown."""
        return max(self.count - _SHOWN, 0)


def print_report(
    compared: Compared, stored: int | None, findings: Findings, remarks: Sequence[str | Table], *, of: str | None
) -> None:
    """Print the result of an import.

    Args:
        compared: what the second reading found.
        stored: how many records the store has; None of a dry run.
        findings: the problems, which have been shown.
        remarks: those of the importer.
        of: the system whose records were imported; None of a dry run.
    """
    say(f"{counted(compared.rows, 'row')} in the source")
    for finding, words in (_WOULD if of is None else _IS).items():
        if compared.counts[finding] or finding is RowState.SAME:
            say(f"{compared.counts[finding]:,} {words}")
    if stored is not None:
        say(f"{counted(stored, 'record')} in the store")
        if (twins := compared.counts[RowState.SAME] - stored) > 0:
            say(f"{counted(twins, 'row shares', 'rows share')} the id of another row (after the conversion)", err=True)
    if findings.unseen:
        say(f"{counted(findings.unseen, 'more problem')} not shown; --problems FILE writes all of them", err=True)
    _print_remarks(remarks)
    _print_verdict(findings, of)


def report_document(
    compared: Compared, stored: int | None, findings: Findings, remarks: Sequence[str | Table]
) -> Mapping[str, Any]:  # Any: JSON
    """Return the report for programs; ``stored`` is null of a dry run."""
    return {
        "rows": compared.rows,
        **{finding.name.lower(): count for finding, count in compared.counts.items()},
        "stored": stored,
        "problems": findings.count,
        "remarks": [_as_json(remark) for remark in remarks],
    }


_IS: Final = {
    RowState.SAME: "are in the store, with equal times and content hashes",
    RowState.MISSING: "are missing in the store",
    RowState.DELETED: "were deleted from the store, and are left out",
    RowState.STILL_OPEN: "are open in the store and closed in the source",
    RowState.DIFFERENT: "differ from the stored record",
    RowState.OTHER_RUN: "have an id that belongs to another run in the store",
    RowState.OTHER_RUNTIME: "have another runtime in the source than from start to stop, which counts here",
    RowState.UNREADABLE: "are no valid records",
}

_WOULD: Final = _IS | {
    RowState.SAME: "are in the store already",
    RowState.MISSING: "would be imported",
    RowState.DELETED: "were deleted from the store, and would be left out",
    RowState.STILL_OPEN: "would close a record that is open in the store",
}


def _print_verdict(findings: Findings, of: str | None) -> None:
    if findings.count:
        say(
            f"{counted(findings.count, 'row of the source is', 'rows of the source are')} not in the store unchanged",
            err=True,
        )
        if of is not None:
            say(
                f"Run the same command again to import the records that {of} has received meanwhile. With --replace it "
                "also corrects stored records of the same runs with other content, and restores deleted ones.",
                err=True,
            )
    elif of is not None:
        say("The import is complete.")


def _print_remarks(remarks: Sequence[str | Table]) -> None:
    for remark in remarks:
        if isinstance(remark, str):
            say()
            say(remark)
        else:
            table = new_table(*(column.title for column in remark.columns))
            for row in remark.rows:
                table.add_row(*map(str, row))
            print_table(table)


def _as_json(remark: str | Table) -> Any:  # Any: JSON
    return remark if isinstance(remark, str) else {"columns": remark.columns, "rows": remark.rows}


def _line(problem: RowProblem) -> bytes:
    document = {
        "finding": problem.finding.value,
        "where": problem.where,
        "reason": problem.reason,
        "source": problem.source.decode(errors="replace"),
        "stored": None if problem.stored is None else problem.stored.decode(errors="replace"),
    }
    return json.dumps(document, ensure_ascii=False).encode(errors="replace") + b"\n"


def _short(text: bytes) -> str:
    shown = text[:_TEXT_BYTES].decode(errors="replace")
    return shown if len(text) <= _TEXT_BYTES else shown + "…"
