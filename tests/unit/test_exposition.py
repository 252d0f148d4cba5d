"""``/metrics`` as text."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Info, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from auditord.metrics import CountedKey, DatabaseMetrics, TaskMetrics, exposition
from auditord.web.dispatch import HttpMetrics
from auditord_hookspecs import LeftOut

VALUES = st.text(max_size=10) | st.sampled_from(['"', "\\", "\n", "\\n", "{}", "a,b", "\u00e9"])


def samples_of(text: bytes) -> Sequence[Sample]:
    families = text_string_to_metric_families(text.decode())
    samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_created")]
    return sorted(samples, key=lambda each: (each.name, sorted(each.labels.items())))


@given(
    users=st.dictionaries(VALUES, st.integers(0, 1 << 53), max_size=5),
    seconds=st.lists(st.floats(0, 100), max_size=5),
    event=VALUES,
)
def test_it_says_the_same_as_the_library(users: dict[str, int], seconds: list[float], event: str) -> None:
    registry = CollectorRegistry()
    counts = DatabaseMetrics(total=True, keys=(CountedKey("num_per_user", "user", "user_id"),), max_values=100)
    counts.update(sum(users.values()), {"user_id": users}, 3)
    http = HttpMetrics()
    for taken in seconds:
        http.route("/record", "POST")[200].observe(taken, 500, 0)
        http.route("/records", "GET")[500].observe(taken, 0, 1 << 40)
    registry.register(counts)
    registry.register(http)
    Counter("events", "Those of a plugin.", ("which",), registry=registry).labels(event).inc(0.5)
    Info("build", "Of this program.", registry=registry).info({"version": event})
    assert samples_of(exposition(registry)) == samples_of(generate_latest(registry))


def test_whole_numbers_are_written_as_auditor_does() -> None:
    registry = CollectorRegistry()
    counts = DatabaseMetrics(total=True, keys=(), max_values=1)
    counts.update(12_345_678, {}, 0)
    registry.register(counts)
    assert b"\nnum_records_database 12345678\n" in exposition(registry)


def test_what_records_lack_is_counted_by_instance_and_name() -> None:
    registry = CollectorRegistry()
    lacking = [LeftOut("MaxRSS", "too much"), LeftOut("MaxRSS", "too much"), LeftOut("vo", "no JSON", label=True)]
    lacking.append(LeftOut("Cores", "0.4", rounded=True))
    TaskMetrics(registry).count_left_out("slurm", lacking)
    text = exposition(registry).decode()
    assert 'auditord_left_out_components_total{component="MaxRSS",task="slurm"} 2.0\n' in text
    assert 'auditord_rounded_components_total{component="Cores",task="slurm"} 1.0\n' in text
    assert 'auditord_left_out_components_total{component="Cores"' not in text
    assert 'auditord_left_out_labels_total{label="vo",task="slurm"} 1.0\n' in text
