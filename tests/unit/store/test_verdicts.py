"""The meaning of a second record with a known id: the rules as a table."""

from datetime import UTC, datetime, timedelta

import pytest

from auditord.store import Duplicates, Verdict
from auditord.store.planning import classify, starts_earlier
from auditord.store.rows import Identity, anonymous_hash, content_hash
from auditord_hookspecs import Component, Record, Score

A, B = 1_000_000, 2_000_000  # starts
OPEN = None
END, LATER = 9_000_000, 9_500_000  # stops
X, Y = 1, 2  # contents

SAME_RUN, REFUSE, IGNORE = Duplicates.SAME_RUN, Duplicates.REFUSE, Duplicates.IGNORE
CLOSED, SAME, DIFFERENT, EXISTS = Verdict.CLOSED, Verdict.SAME, Verdict.DIFFERENT, Verdict.EXISTS

Times = tuple[int, int | None, int]

TABLE: list[tuple[str, Times, Times, Verdict, Verdict]] = [
    # what happens                    stored           offered          same-run   ignore
    ("delivered twice",              (A, END, X),     (A, END, X),     SAME,      SAME),
    ("delivered twice, open",        (A, OPEN, X),    (A, OPEN, X),    SAME,      SAME),
    ("collected again, other meta",  (A, END, X),     (A, END, Y),     DIFFERENT, DIFFERENT),
    ("collected again, other stop",  (A, END, X),     (A, LATER, X),   DIFFERENT, DIFFERENT),
    ("the job has ended",            (A, OPEN, X),    (A, END, X),     CLOSED,    CLOSED),
    ("it ended, more is known",      (A, OPEN, X),    (A, END, Y),     CLOSED,    CLOSED),
    ("open with other content",      (A, OPEN, X),    (A, OPEN, Y),    DIFFERENT, DIFFERENT),
    ("open news after the end",      (A, END, X),     (A, OPEN, X),    SAME,      SAME),
    ("old open news, less known",    (A, END, X),     (A, OPEN, Y),    SAME,      SAME),
    ("a drone comes back",           (A, OPEN, X),    (B, OPEN, X),    SAME,      SAME),
    ("its first news comes late",    (B, OPEN, X),    (A, OPEN, X),    SAME,      SAME),
    ("another drone, open",          (A, OPEN, X),    (B, OPEN, Y),    EXISTS,    DIFFERENT),
    ("a job number used again",      (A, END, X),     (B, LATER, X),   EXISTS,    DIFFERENT),
    ("used again, still running",    (A, END, X),     (B, OPEN, X),    EXISTS,    DIFFERENT),
    ("another run has ended",        (A, OPEN, X),    (B, END, X),     EXISTS,    DIFFERENT),
]  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "offered", "same_run", "ignore"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_verdicts(stored: Times, offered: Times, same_run: Verdict, ignore: Verdict) -> None:
    assert classify(Identity(*stored), Identity(*offered), SAME_RUN) is same_run
    assert classify(Identity(*stored), Identity(*offered), IGNORE) is ignore
    assert classify(Identity(*stored), Identity(*offered), REFUSE) is EXISTS


def test_a_record_that_lacks_its_user_here_is_the_same_with_the_same_stop_alone() -> None:
    stored, offered = Identity(A, END, X), Identity(A, END, Y, anonymous=X)
    assert classify(stored, offered, SAME_RUN) is SAME
    assert classify(stored, Identity(A, LATER, Y, anonymous=X), SAME_RUN) is DIFFERENT
    assert classify(stored, Identity(A, END, Y, anonymous=Y), SAME_RUN) is DIFFERENT


def test_ignoring_accepts_everything() -> None:
    assert all(row[4].accepted for row in TABLE)


@pytest.mark.parametrize(
    ("stored", "offered", "earlier"),
    [
        ((B, OPEN, X), (A, OPEN, X), True),
        ((A, OPEN, X), (B, OPEN, X), False),
        ((A, OPEN, X), (A, OPEN, X), False),
        ((B, OPEN, X), (A, OPEN, Y), False),
        ((B, END, X), (A, OPEN, X), False),
    ],
)
def test_only_an_open_record_that_came_back_moves_its_start(stored: Times, offered: Times, earlier: bool) -> None:  # noqa: FBT001 a table's column
    assert starts_earlier(Identity(*stored), Identity(*offered)) is earlier


START = datetime(2024, 2, 3, 4, 5, 6, 7, tzinfo=UTC)


def record(meta: dict[str, tuple[str, ...]] | None = None, *components: Component) -> Record:
    return Record("r", START, components, meta=meta)


CORES = Component("Cores", 8, (Score("HEPSPEC06", 10),))
MEMORY = Component("Memory", 100, ())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (record(None), record({})),
        (record({"a": ("1",), "b": ("2",)}), record({"b": ("2",), "a": ("1",)})),
        (record({"a": ("1",), "collector_version": ("7",)}), record({"a": ("1",), "collector_type": ("slurm",)})),
        (record(None, CORES), record(None, Component("Cores", 8, (Score("HEPSPEC06", 10.0),)))),
        (Record("r", START, (CORES,)), Record("q", START + timedelta(1), (CORES,), START + timedelta(2))),
    ],
    ids=["null meta", "order of keys", "provenance", "scores are floats", "times and id are compared beside it"],
)
def test_equal_content(one: Record, other: Record) -> None:
    assert content_hash(one) == content_hash(other)


def test_other_content_has_another_hash() -> None:
    records = [
        record(None),
        record({"a": ()}),
        record({"a": ("1",)}),
        record({"a": ("1", "2")}),
        record({"a": ("2", "1")}),
        record({"b": ("1",)}),
        record(None, CORES),
        record(None, MEMORY),
        record(None, CORES, MEMORY),
        record(None, MEMORY, CORES),
        record(None, Component("Cores", 8, ())),
        record(None, Component("Cores", 8, (Score("HEPSPEC06", 10.5),))),
    ]
    hashes = {content_hash(each) for each in records}
    assert len(hashes) == len(records)
    assert all(-(2**63) <= value < 2**63 for value in hashes)


def test_hashes_are_those_of_stored_records() -> None:
    scores = (Score("x", 1), Score("HEP", 1e22))
    meta = {"user_id": ("ä\\",), "b": ("1", "2"), "a": (), "collector_type": ("x",)}
    labelled = record(meta, Component("Memory", 16_384, ()), Component("Cores", 8, scores))
    assert content_hash(labelled) == 8016657684584231380
    assert anonymous_hash(labelled) == -370503713414683207
    assert content_hash(record(None)) == -5488218888011363818
