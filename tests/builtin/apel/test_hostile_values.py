"""Whatever users and batch systems put into records, every message is one that APEL takes, and no job is lost."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditord.testing import FakePluginContext
from auditord_builtin.apel.config import ApelConfig, SummaryLayout
from auditord_builtin.apel.jobs import job_row
from auditord_builtin.apel.messages import Problem, clean, render, render_jobs, sync_message
from auditord_builtin.apel.summaries import summaries
from auditord_builtin.apel.validation import validate
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.months import Month
from tests.builtin.apel.apel_receiver import Receiver

pytestmark = pytest.mark.slow  # some ten seconds together

MONTH = Month(2024, 2)
# Hypothesis makes its table of characters in the first example.
patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NASTY = (
    "a\nVO: b\n%%\n",
    "%%",
    "%%%%",
    "100%",
    "a:b: c",
    "None",
    "null",
    "x" * 255 + "y",
    "é" * 256,
    "Jörg",
    "JÖRG",
    "jorg",
    "\u2028\u2029\x85\r\x0b",
    "😀 {HEPscore23: 5}",
    "\u202eabc",
    "application/x-PKCS7-mime",
    "ß",
    "ss",
    "%\x01%",
    "ﬁ",
    "İ",
)
texts = st.one_of(
    st.sampled_from(NASTY), st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=60)
).filter(lambda text: not text.isspace())
labels = st.dictionaries(st.sampled_from(["voms", "host", "user", "role", "group", "site"]), texts)
amounts = st.one_of(st.none(), st.integers(0, 8), st.just(2**63 - 1))
scores = st.sampled_from([None, 0.0, 0.1, 15.123456, 1e-320, 1e300])


@st.composite
def records(draw: st.DrawFn) -> Sequence[Record]:
    return [draw(one_record(number)) for number in range(draw(st.integers(1, 6)))]


@st.composite
def one_record(draw: st.DrawFn, number: int) -> Record:
    stop = MONTH.start + draw(st.timedeltas(timedelta(0), timedelta(days=28, microseconds=999_999)))
    start = stop - draw(st.timedeltas(timedelta(0), timedelta(days=3)))
    found, cores, cpu = draw(labels), draw(amounts), draw(amounts)
    score = draw(scores)
    rated = () if score is None else (Score("HEPscore23", score),)
    parts = [] if cores is None else [Component("Cores", cores, rated)]
    parts += [] if cpu is None else [Component("TotalCPU", cpu, ())]
    return Record(f"{number} {found.get('user', '')}"[:255], start, tuple(parts), stop, meta_of(found))


def meta_of(found: dict[str, str]) -> dict[str, tuple[str, ...]]:
    meta: dict[str, tuple[str, ...]] = {key: (value,) for key, value in found.items()}
    return meta | {"site_id": ("a",)}


def configured(layout: str, job_layout: str) -> ApelConfig:
    def meta(name: str) -> dict[str, Any]:  # Any: as in a file
        return {"type": "MetaField", "name": name}

    who = {"GlobalUserName": meta("user"), "VOGroup": meta("group"), "VORole": meta("role")}
    return ApelConfig.model_validate(
        {
            "site": {"sites_to_report": {"SITE-A": "a"}},
            "messaging": {"client_cert": "/c", "client_key": "/k"},
            "summary_message": layout,
            "job_message": job_layout,
            "summary_fields": {
                "mandatory": {"VO": meta("voms"), "SubmitHost": meta("host")},
                "optional": {**who, "Infrastructure": meta("role")},
            },
            "individual_job_fields": {
                "optional": {
                    "SubmitHost": meta("host"),
                    **who,
                    "FQAN": meta("voms"),
                    "Queue": meta("role"),
                    "InfrastructureType": meta("user"),
                },
            },
        }
    )


@patiently
@given(st.sampled_from([each.value for each in SummaryLayout]), records())
def test_summaries(layout: str, stored: Sequence[Record]) -> None:
    config = configured(layout, "v0.4")
    answer = anyio.run(summaries, config, FakePluginContext(stored=stored), "SITE-A", MONTH)
    receiver, now = Receiver(), datetime(2024, 3, 1, tzinfo=UTC)
    for message in (*render(answer.rows), *sync_message(answer.counts)):
        assert validate(message.text, now) == []
        receiver.take(message.text)
    ended = [each for each in stored if each.stop_time is not None and Month.of(each.stop_time) == MONTH]
    left_out = sum(problem.jobs for problem in answer.problems)
    assert len({row.key for row in answer.rows}) == len(answer.rows) == len(receiver.rows)
    assert receiver.total("NumberOfJobs") + left_out == len(ended)
    assert sum(receiver.sync.values()) == len(ended)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("a%%b", "a% %b"),
        ("%%%", "% % %"),
        ("100%", "100%"),
        ("a\nVO: b\r\n%\x01%", "a VO: b % %"),
        ("\t \x00", "None"),
        ("application/x-pkcs7-MIME", "application/x-pkcs7 MIME"),
        ("😀é", "?é"),
        ("x" * 300, "x" * 255),
    ],
)
def test_texts_are_made_harmless(given: str, text: str) -> None:
    assert clean(given) == text


def test_what_apel_reads_as_nothing_is_one_row() -> None:
    def job(number: int, found: dict[str, str]) -> Record:
        parts = (Component("Cores", 1, (Score("HEPscore23", 10.0),)), Component("TotalCPU", 1, ()))
        return Record(str(number), MONTH.start, parts, MONTH.start + timedelta(hours=1), meta_of(found))

    names = ["null", "NULL", "None", "none", ""]
    stored = [
        job(n, {"voms": "x", "host": name, "user": name} if name else {"voms": "x"}) for n, name in enumerate(names)
    ]
    answer = anyio.run(
        summaries, configured("normalised-v0.4", "v0.4"), FakePluginContext(stored=stored), "SITE-A", MONTH
    )
    assert [(row.submit_host, row.jobs) for row in answer.rows] == [("None", 5)]
    receiver = Receiver()
    for message in (*render(answer.rows), *sync_message(answer.counts)):
        assert validate(message.text) == []
        receiver.take(message.text)
    assert receiver.total("NumberOfJobs") == 5


@patiently
@given(st.sampled_from(["v0.4", "v0.3"]), records())
def test_individual_jobs(layout: str, stored: Sequence[Record]) -> None:
    config, receiver = configured("v0.2", layout), Receiver()
    made = [job_row(config, record) for record in stored]
    rows = [job for job in made if job is not None and not isinstance(job, Problem)]
    for message in render_jobs(rows, 20_000):
        assert validate(message.text) == []
        receiver.take(message.text)
    assert Counter(map(type, made))[Problem] + len(receiver.rows) == len(stored)


@patiently
@given(records())
def test_halves_have_the_same_records(stored: Sequence[Record]) -> None:
    config = configured("v0.2", "v0.4")
    rows = [job for job in (job_row(config, record) for record in stored) if job and not isinstance(job, Problem)]
    for message in render_jobs(rows):
        if message.records < 2:
            with pytest.raises(ValueError, match="one record"):
                message.halves()
            continue
        first, second = message.halves()
        assert first.record_ids + second.record_ids == message.record_ids
        assert first.records + second.records == message.records
        assert first.text + second.text.partition("\n")[2] == message.text
        assert validate(first.text) == validate(second.text) == []
