"""Parsers of what batch systems print and write: sacct, scontrol, ClassAds, the notes of the epilog."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from auditord_builtin.htcondor.ads import JobAd, ad_name, follow_references, parse_ad, since, split_ads
from auditord_builtin.htcondor.config import HTCondorConfig
from auditord_builtin.htcondor.conversion import convert_ad
from auditord_builtin.htcondor.evaluation import literals
from auditord_builtin.htcondor.output import cut_json, cut_json_lines, parse_separated
from auditord_builtin.htcondor.query import list_columns
from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.conversion import Converter
from auditord_builtin.slurm.epilog.notes import JobNote, read_folder
from auditord_builtin.slurm.epilog.rows import COLUMNS, parse_job
from auditord_builtin.slurm.query import TableReader
from auditord_builtin.slurm.runs import Table, find_runs
from auditord_hookspecs import CommandFailed, InvalidRecord, Quarantined, Window
from tests.fuzz.mutation import mutated
from tests.fuzz.running import Parser
from tests.sacct_tables import parse_table

_BUILTIN: Final = Path(__file__).parents[1] / "builtin"
_EVER: Final = Window(datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
_unforeseen: Final = re.compile(r"[A-Z]\w*(?:Error|Exception): ")
"""The beginning of the reason of a conversion that was stopped by what nobody foresaw."""

_SACCT: Final = SlurmConfig()
_SACCT_COLUMNS: Final = _SACCT.wanted_columns
_DELIMITER: Final = "<0123>"
_CAPTURED: Final = (
    "JobID Cluster State Submit Start End User UID Group GID NCPUS AllocTRES TotalCPU MaxRSS JobName Comment"
)
_OTHERS: Final = {
    "Partition": "short",
    "Account": "physics",
    "NodeList": "n[01-02]",
    "Elapsed": "1-00:00:01",
    "QOS": "n",
}


def _captured_runs() -> list[bytes]:
    """Real rows, with all columns that are asked for."""
    captured = (_BUILTIN / "slurm/captured.txt").read_bytes()
    rows = parse_table(captured, [*_CAPTURED.split(), "JobIDRaw"], "<6f1ed002ab5595859014ebf0951522d9>").rows
    lines = [_DELIMITER.join({**_OTHERS, **row}.get(column, "") for column in _SACCT_COLUMNS) for row in rows]
    return ["\n".join([*lines[start : start + 4], ""]).encode() for start in range(0, len(lines), 4)]


def _parse_sacct(text: bytes) -> None:
    whole = parse_table(text, _SACCT_COLUMNS, _DELIMITER)
    assert _in_pieces(text) == whole
    found = find_runs(whole, _EVER)
    for run in [*found.runs.values(), *found.endless.values()]:
        classified = Converter(_SACCT).convert(run)
        assert not (isinstance(classified, Quarantined) and _unforeseen.match(classified.reason)), classified


def _in_pieces(text: bytes) -> Table:
    reader = TableReader(_SACCT_COLUMNS, _DELIMITER)
    parts = [reader.feed(text[start : start + 97]) for start in range(0, len(text), 97)]
    parts.append(reader.finish())
    return Table([row for part in parts for row in part.rows], [line for part in parts for line in part.unreadable])


def _parse_scontrol(text: bytes) -> None:
    job = parse_job(text.decode(errors="replace"))
    if job is not None:
        assert {*job} <= {*COLUMNS, "State", "Restarts"}
        assert re.fullmatch(r"\d+(?:[_+]\d+)?", job["JobID"])


_CONDOR: Final = HTCondorConfig(schedd_names=("s1",))
_CONDOR_COLUMNS: Final = list_columns(_CONDOR)
_WORD: Final = "_00112233aabbccdd_"


def _parse_ads(text: bytes) -> None:
    texts = [each.decode(errors="replace") for each in split_ads(text)]
    for cut in (cut_json, cut_json_lines):
        try:
            texts += cut(text)
        except CommandFailed:
            continue
    for each in [*texts, text.decode(errors="replace")]:
        _parse_ad(each)
    for ad in parse_separated(text, _CONDOR_COLUMNS, _WORD).ads:
        _convert_ad(ad)


def _parse_ad(text: str) -> None:
    try:
        attributes = parse_ad(text)
    except InvalidRecord:
        return
    follow_references(attributes, _CONDOR_COLUMNS)
    _convert_ad(JobAd(literals(attributes, _CONDOR_COLUMNS)))


def _convert_ad(ad: JobAd) -> None:
    classified = convert_ad(_CONDOR, ad)
    assert not (isinstance(classified, Quarantined) and _unforeseen.match(classified.reason)), classified
    since(ad_name(ad, epochs=False), epochs=False)


def _recorded(folder: str, pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((_BUILTIN / folder / "recorded").glob(pattern))]


def _separated() -> list[bytes]:
    """Rows as ``-af`` prints them, with the columns that are asked for by default."""
    values = {"GlobalJobId": "s1#1.0#1", "JobStatus": "4", "JobStartDate": "1700000000", "CompletionDate": "1700000100"}
    row = _WORD + "".join(f" {values.get(column, 'undefined')} {_WORD}" for column in _CONDOR_COLUMNS)
    return [f"{row}\n".encode(), f"{row}\n{row}\n".encode()]


_NOTE: Final = b"SLURM_JOB_ID=7\0SLURM_ARRAY_JOB_ID=5\0SLURM_ARRAY_TASK_ID=2\0SLURM_JOB_USER=n\xc3\xa4me\0\0"
_HET: Final = b"SLURM_JOB_ID=7\0SLURM_HET_JOB_ID=6\0SLURM_HET_JOB_OFFSET=1\0\0"
_QUESTION: Final = re.compile(r"[0-9]+(?:[_+][0-9]+)?", re.ASCII)


def note_parser(folder: Path) -> Parser:
    """The parser of notes, which are written into the folder."""
    file, now = folder / "7.0123456789abcdef.job", datetime(2100, 1, 1, tzinfo=UTC)

    def parse(text: bytes) -> None:
        file.write_bytes(text)
        (note,) = read_folder(folder, now).notes
        assert isinstance(note, JobNote)
        assert _QUESTION.fullmatch(note.question), note.question  # it goes into a command's arguments

    return Parser("note files", mutated([_NOTE, _HET], [b"SLURM_", b"JOB_ID=", b"\0\0"]), parse)


SACCT: Final = Parser(
    "sacct text",
    mutated(_captured_runs(), [_DELIMITER.encode(), b"Unknown", b"None", b"CANCELLED by 0", b"gres/gpu="]),
    _parse_sacct,
    (CommandFailed,),
)
SCONTROL: Final = Parser(
    "scontrol",
    mutated(_recorded("slurm_epilog", "*.txt"), [b" JobId=1 ", b"UserId=root(0)", b"TRES=", b"EndTime="]),
    _parse_scontrol,
)
CLASSADS: Final = Parser(
    "ClassAds",
    mutated(
        [*_separated(), *_recorded("htcondor", "*.out"), *_recorded("htcondor", "*.txt")],
        [_WORD.encode(), b"\n*** ", b'"\\/Expr(', b'\\"', b"undefined", b"GlobalJobId = ", b"nan", b"1.5E+03"],
    ),
    _parse_ads,
    (CommandFailed,),
)
