"""Texts for an operator when the configuration is wrong: the whole line, as it is printed."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from auditord.config.kinds import InstalledKinds
from auditord.config.loading import Loaded, load_text, load_with_sources
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks

Load = Callable[..., Loaded]

INSTANCE = "collectors:\n  big:\n    kind: pages\n    path: /p\n"


def faults(load: Load, text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(text, **environ)
    first, *others = re.sub(r"/\S*/", "", str(caught.value)).splitlines()
    return [line.strip() for line in others] or [first.removeprefix("the configuration cannot be used: ")]


def test_rows_of_ones_own_need_an_authenticator_that_knows_user_names(load: Load) -> None:
    own = "access: {roles: {own: {permissions: [read], rows: {user_id: [self]}}}}\n"
    (fault,) = faults(load, own + "authenticators:\n  g: {kind: gates}\n")
    assert fault.startswith("a.yml:3: authenticators.g: the role 'own' shows users their own records (self)")
    assert load(own + "authenticators:\n  g: {kind: names}\n").configuration.authenticators.keys() == {"g"}


def test_faults_are_in_the_order_of_the_lines(load: Load) -> None:
    found = faults(load, "logging: {level: loud}\n" + INSTANCE + "    intervall: 5m\napis: {}\nstore: {ulr: x}\n")
    assert [each.split(":")[1] for each in found] == ["1", "6", "7", "8"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "apis: {}",
            "a.yml:1: apis: there is no such option; did you mean 'api'? (allowed: access, api, ",
        ),
        (
            "logging:\n  levle: info",
            "a.yml:2: logging.levle: there is no such option; did you mean 'level'? (allowed: format, level)",
        ),
        (
            "api: {tls: {certificate: /a.pem}}",
            "a.yml:1: api.tls: there is no such option here; there is api.listen[].tls (allowed: allow_insecure, ",
        ),
        (
            "ui: {pledges: []}",
            "a.yml:1: ui.pledges: there is no such option here; there is pledges (allowed: co2_per_kwh, ",
        ),
        (
            "logging: {level: loud}",
            "a.yml:1: logging.level: it should be 'debug', 'info', 'warning' or 'error', not 'loud'",
        ),
        ("api: {enabled: maybe}", "a.yml:1: api.enabled: it should be a valid boolean, unable to interpret input, not"),
        (
            INSTANCE + "    intervall: 5m",
            "a.yml:5: collectors.big.intervall: there is no such option; did you mean 'interval'? (allowed: enabled, ",
        ),
        (
            INSTANCE + "    interval: -1m",
            "a.yml:5: collectors.big.interval: '-1m' must not be negative",
        ),
        (
            INSTANCE + "    interval: 300",
            "a.yml:5: collectors.big.interval: '300' is not a duration: write a number with a unit, such as 300s, 300m",
        ),
        (
            INSTANCE + "    sites:\n      - name: A\n      - nmae: B\n        name: B",
            "a.yml:7: collectors.big.sites[1].nmae: there is no such option; did you mean 'name'? (allowed: matches",
        ),
        (INSTANCE + "    sites:\n      - {}", "a.yml:6: collectors.big.sites[0].name: this option is required"),
        (
            INSTANCE + "    trays: {upper: {name: A, size: 3}}",
            "a.yml:5: collectors.big.trays.upper.size: there is no such option (allowed: matches, name)",
        ),
        (
            INSTANCE + "    record_prefix: 007",
            "a.yml:5: collectors.big.record_prefix: it should be a valid string; to write it as text, put it in quotes",
        ),
        ("collectors:\n  big: {kind: pages}", "a.yml:2: collectors.big.path: this option is required"),
        ("collectors:\n  big: {}", "a.yml:2: collectors.big.kind: this option is required (allowed: copies, pages)"),
        ("plugins: {m: {}}", "a.yml:1: plugins.m.kind: this option is required (allowed: mail)"),
        (
            "collectors: {big: {kind: pgaes}}",
            "a.yml:1: collectors.big.kind: no installed hook module has the kind 'pgaes'; did you mean 'pages'?",
        ),
        (
            "plugins: {m: {kind: mial}}",
            "a.yml:1: plugins.m.kind: no installed hook module has the kind 'mial'; did you mean 'mail'? (",
        ),
        (
            "plugins: {m: {kind: laserlog}}",
            "a.yml:1: plugins.m.kind: no installed hook module has the kind 'laserlog' (allowed: mail): install a",
        ),
        ("collectors: {big: [pages]}", "a.yml:1: collectors.big: it should be a section"),
        ("collectors: {big: }", "a.yml:1: collectors.big: it should be a section"),
        ("collectors: [big]", "a.yml:1: collectors: it should be a section"),
        (
            "collectors: {Big-1: {kind: copies}}",
            "a.yml:1: collectors.Big-1: 'Big-1' is not a valid name: use lowercase letters, digits and _",
        ),
        (
            "collectors: {a: {kind: copies, interval: 5m, schedule: '* * * * *'}}",
            "a.yml:1: collectors.a: interval and schedule exclude each other: keep one",
        ),
        (
            "senders: {p: {kind: post, origin: all}}",
            "a.yml:1: senders.p.origin: there is no such option (allowed: class, enabled, from, kind, token)",
        ),
        (
            "state_dir: var",
            "a.yml:1: state_dir: 'var' is relative: write an absolute path",
        ),
        (
            "senders: {p: {kind: post, from: web}}",
            "a.yml:1: senders.p.from: it should be 'collectors', 'api' or 'all', not 'web'",
        ),
        (
            "logging: {level: wraning}",
            (
                "a.yml:1: logging.level: it should be 'debug', 'info', 'warning' or 'error', not 'wraning'; "
                "did you mean 'warning'?"
            ),
        ),
        (
            "api: {duplicates: Same_Run}",
            (
                "a.yml:1: api.duplicates: it should be 'same-run', 'refuse' or 'ignore', not 'Same_Run'; did you mean "
                "'same-run'?"
            ),
        ),
        ("api: {listen: [{address: '127.0.0.1:1', tls: {certificat: /x}}]}", "a.yml:1: api.listen[0].tls.certificat: "),
        ("api: {listen: {}}", "a.yml:1: api.listen: it should be a list"),
        (INSTANCE + "    sites:\n      - {nam: A}", "a.yml:6: collectors.big.sites[0].nam: there is no such option"),
        ("a: 1\na: 2", "a.yml:2: the key 'a' is repeated (first on line 1): keep one"),
    ],
)
def test_a_fault_names_line_path_and_what_is_allowed(load: Load, text: str, expected: str) -> None:
    (line,) = faults(load, text)
    assert line.startswith(expected)


def test_all_faults_are_reported_at_once(load: Load) -> None:
    text = "api: {listen: [x, y]}\nlogging: {levle: info}\ncollectors: {a: {kind: pages, jitter: 5}}\n"
    paths = [line.split(": ")[1] for line in faults(load, text)]
    assert sorted(paths) == [
        "api.listen[0]",
        "api.listen[1]",
        "collectors.a.jitter",
        "collectors.a.path",
        "logging.levle",
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("AUDITORD_COLECTORS__A__KIND", "copies", "no such section; did you mean 'AUDITORD_COLLECTORS'? (allowed: "),
        ("AUDITORD_", "x", "no such section"),
        ("AUDITORD_API__LISTEN", "127.0.0.1:80", 'write JSON, such as ["a", "b"]'),
        ("AUDITORD_API__LISTN", "[]", "api.listn: there is no such option; did you mean 'listen'?"),
        ("AUDITORD_API____ENABLED", "true", "api.: there is no such option"),
        ("AUDITORD_COLLECTORS__B__PATH", "/p", "collectors.b.kind: this option is required"),
        ("AUDITORD_SHUTDOWN__GRACE", "30", "shutdown.grace: '30' is not a duration"),
    ],
)
def test_a_fault_of_the_environment_names_the_variable(load: Load, name: str, value: str, expected: str) -> None:
    (line,) = faults(load, "", **{name: value})
    assert line.startswith(f"environment variable {name}: {expected}")


def test_a_fault_names_the_file_that_won(load: Load, tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "b.yml").write_text("\n\nlogging: {level: loud}\n")
    (line,) = faults(load, "logging: {level: info}\n")
    assert line.startswith("b.yml:3: logging.level: ")


def test_faults_of_several_files_are_reported_at_once(load: Load, tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "b.yml").write_text("a: 1\na: 2\n")
    assert [line.split(":")[0] for line in faults(load, "- 1\n")] == ["a.yml", "b.yml"]


def test_a_secret_is_never_quoted(load: Load) -> None:
    text = "plugins: {m: {kind: mail, password: 12345}}\nsenders: {p: {kind: post, token: {a: 67890}}}"
    lines = faults(load, text)
    assert [line.split(": ")[1] for line in lines] == ["plugins.m.password", "senders.p.token"]
    assert not re.search("12345|67890", "".join(lines))


def test_without_any_kind_a_section_says_where_kinds_come_from(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("collectors: {a: {kind: pages}}")
    with pytest.raises(
        ConfigurationError, match=r"collectors\.a: no installed hook module has a kind .*auditord hooks"
    ):
        load_with_sources([tmp_path / "a.yml"], InstalledKinds(), {"HOME": "/h"}, lambda _: None)


def test_the_local_sender_takes_nothing_back_from_the_store() -> None:
    kinds = load_hooks([]).kinds
    text = "state_dir: /srv/a\nsenders:\n  local: {kind: local, from: %s}"
    assert set(load_text(text % "collectors", "a.yml", kinds, {}).senders) == {"local"}
    with pytest.raises(ConfigurationError, match=r"a\.yml:3: senders\.local\.from: records from the API are already"):
        load_text(text % "all", "a.yml", kinds, {})


def test_two_collectors_with_one_prefix_would_count_each_job_twice(load: Load) -> None:
    (line,) = faults(load, "collectors:\n  a: {kind: pages, path: /a}\n  b: {kind: pages, path: /b}\n")
    assert line.startswith("a.yml:3: collectors.b: the record prefix 'pages' is already used by collectors.a (")
    assert line.endswith("choose another one, or set same_source_as: a if both read the same jobs")


@pytest.mark.parametrize(
    "other",
    [
        "b: {kind: pages, path: /b, same_source_as: a}",
        "b: {kind: pages, path: /b, record_prefix: other}",
        "b: {kind: pages, path: /b, same_source_as: d}\n  d: {kind: pages, path: /d, same_source_as: a}",
        "d: {kind: pages, path: /d, same_source_as: a}\n  b: {kind: pages, path: /b, same_source_as: d}",
    ],
)
def test_two_collectors_of_one_source_say_so_or_differ(load: Load, other: str) -> None:
    text = f"collectors:\n  a: {{kind: pages, path: /a}}\n  {other}\n  c: {{kind: pages, path: /c, enabled: false}}\n"
    assert set(load(text).configuration.collectors) >= {"a", "b", "c"}


def test_two_collectors_may_name_each_other(load: Load) -> None:
    pair = "{kind: pages, path: /a, same_source_as: %s}"
    assert load(f"collectors: {{a: {pair % 'b'}, b: {pair % 'a'}}}").configuration.collectors
    (line,) = faults(load, f"collectors: {{a: {pair % 'b'}, b: {pair % 'a'}, c: {{kind: pages, path: /c}}}}")
    assert "collectors.c: the record prefix" in line


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("same_source_as: c, record_prefix: x", "there is no other collector 'c' (others: a)"),
        ("same_source_as: b, record_prefix: x", "there is no other collector 'b' (others: a)"),
        ("same_source_as: a, record_prefix: x", "the record prefixes differ ('x' here, 'pages' in collectors.a)"),
    ],
)
def test_a_source_that_is_none_is_refused(load: Load, options: str, expected: str) -> None:
    text = f"collectors:\n  a: {{kind: pages, path: /a}}\n  b: {{kind: pages, path: /b, {options}}}\n"
    (line,) = faults(load, text)
    assert line.startswith(f"a.yml:3: collectors.b.same_source_as: {expected}")


def test_a_collector_and_a_plugin_do_not_share_a_name(load: Load) -> None:
    (line,) = faults(load, "collectors: {a: {kind: copies}}\nplugins: {a: {kind: mail}}\n")
    assert line.startswith("a.yml:2: plugins.a: a collector has the same name (")


def shipped_faults(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_text(f"state_dir: /s\n{text}", "a.yml", load_hooks([]).kinds, {})
    return str(caught.value).splitlines()


def test_a_fault_that_is_only_the_consequence_of_another_is_not_reported() -> None:
    (line,) = shipped_faults("collectors: {s: {kind: slurm, sites: [{name: A, only_if: {kye: x, matches: y}}]}}")
    assert "sites[0].only_if.kye: there is no such option; did you mean 'key'?" in line
    (line,) = shipped_faults("collectors: {s: {kind: slurm, clusters: al}}")
    assert line.endswith("collectors.s.clusters: it should be 'all', not 'al'; did you mean 'all'?")


SLURM = "collectors: {s: {kind: slurm, sites: [{name: S, %s}], %s}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SLURM % ("", "earliest_datetime: 01.11.2026"), "'01.11.2026' is not a time such as 2026-11-01T00:00:00Z"),
        (
            SLURM % ("", "earliest_datetime: 2026-11-01"),
            "'2026-11-01' has no time zone: write 2026-11-01T00:00:00Z for",
        ),
        (
            SLURM % ("", "earliest_datetime: '2026-11-01 06:00'"),
            "'2026-11-01 06:00' has no time zone: write 2026-11-01 06:00Z for UTC",
        ),
        (
            "pledges: [{site: S, amount: 1, from: 01.11.2026, to: 2027-01-01}]",
            "'01.11.2026' is not a day such as 2026-11-01",
        ),
        ("pledges: [{site: S, amount: 1, from: 1.1.26, to: 2027-01-01}]", "'1.1.26' is not a day such as 2026-11-01"),
        (
            SLURM % ("only_if: {key: Group, matches: '^(atlas|cms'}", ""),
            "'^(atlas|cms' is not a regular expression: missing ), unterminated subpattern (at character 2)",
        ),
        (
            SLURM % ("only_if: {key: Group, matches: '*'}", ""),
            "'*' is not a regular expression: nothing to repeat (at character 1)",
        ),
    ],
)
def test_times_and_expressions_are_refused_with_the_right_form_or_the_place(text: str, expected: str) -> None:
    assert [each for each in shipped_faults(text) if expected in each]


def test_what_is_missing_and_was_not_misspelt_is_still_reported() -> None:
    lines = shipped_faults("collectors: {s: {kind: slurm, components: [{kye: NCPUS}]}}")
    assert [line.split(": ")[1] for line in lines[1:]] == [
        "collectors.s.components[0].name",
        "collectors.s.components[0].kye",
    ]
