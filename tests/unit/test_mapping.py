import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from auditord_hookspecs import Component, InvalidRecord, LeftOut, Score
from auditord_hookspecs.mapping import (
    ComponentRule,
    MetaRule,
    PartialRow,
    SiteRule,
    build_components,
    build_meta,
    build_owners,
    columns,
    find_site,
    is_zero,
    parse_labels,
    remarks_on_fractions,
)

SENTINELS = [
    *("", " ", "Unknown", "None", "INVALID", "UNLIMITED", "Partition_Limit", "16?", "N/A", "(null)"),
    *("4294967294", "18446744073709551614", "18446744073709551615"),
]


def component(**options: Any) -> ComponentRule:
    return ComponentRule.model_validate({"name": "X", "key": "k", **options})


def meta(**options: Any) -> MetaRule:
    return MetaRule.model_validate({"name": "m", "key": "k", "key_type": "String", **options})


def amount(text: str, **options: Any) -> int | None:
    built = build_components([component(**options)], {"k": text})
    return built[0].amount if built else None


@pytest.mark.parametrize(
    ("key_type", "text", "expected"),
    [
        ("Integer", "12", 12),
        ("Integer", "+12", 12),
        ("Integer", " 412717056 ", 412_717_056),
        ("Integer", "1.5", 2),
        ("Integer", "0", 0),
        ("IntegerMega", "2000M", 2_000),
        ("IntegerMega", "4G", 4_096),
        ("IntegerMega", "2000K", 2),
        ("IntegerMega", "1.5T", 1_572_864),
        ("IntegerMega", "1P", 1_073_741_824),
        ("IntegerMega", "20971520", 20),
        ("IntegerMega", "0", 0),
        ("Size", "132384K", 135_561_216),
        ("Size", "129.28M", 135_559_905),
        ("Size", "412717056", 412_717_056),
        ("Size", "2GiB", 2_147_483_648),
        ("Time", "43:28.686", 2_608),
        ("Time", "10:07:24", 36_444),
        ("Time", "2-08:19:41", 202_781),
        ("Time", "1-02:03:04.567", 93_784),
        ("Time", "03:04", 184),
        ("Time", "00:00:00", 0),
        ("Time", "100:00:00", 360_000),
        ("Time", "3600", 3_600),
        ("Energy", "512", 512),
        ("Energy", "1.23K", 1_230),
    ],
)
def test_a_text_becomes_an_amount(key_type: str, text: str, expected: int) -> None:
    assert amount(text, key_type=key_type) == expected


@pytest.mark.parametrize("key_type", ["Integer", "IntegerMega", "Size", "Time", "Energy"])
@pytest.mark.parametrize("text", SENTINELS)
def test_a_sentinel_is_missing_and_not_zero(key_type: str, text: str) -> None:
    assert amount(text, key_type=key_type, optional=True) is None
    assert amount(text, key_type=key_type, default_value=7) == 7
    with pytest.raises(InvalidRecord, match=r"component X: k: no value .* default_value"):
        amount(text, key_type=key_type)


@pytest.mark.parametrize(
    ("key_type", "text"),
    [
        ("Integer", "12K"),
        ("Integer", "1_000"),
        ("Integer", "1e5"),
        ("Integer", "nan"),
        ("Integer", "-1"),
        ("Integer", "9223372036854775808"),
        ("Integer", "١٢"),
        ("IntegerMega", "4000Mn"),
        ("Size", "8E8"),
        ("Size", "8192P"),
        ("Time", "1-02"),
        ("Time", "12:34:56:78"),
        ("Time", "-1:00:00"),
        ("Energy", "1.2.3"),
    ],
)
def test_what_cannot_be_read_is_a_fault_even_of_an_optional_amount(key_type: str, text: str) -> None:
    with pytest.raises(InvalidRecord, match="component X: k: "):
        amount(text, key_type=key_type, optional=True)


def test_an_empty_text_that_is_allowed_is_left_out() -> None:
    assert amount("", key_allow_empty=True) is None


@pytest.mark.parametrize(
    ("tres", "key", "expected"),
    [
        ("billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=2G,node=1", "gres/gpu", 2),
        ("cpu=4,gres/gpu:a100=2,gres/gpu:h100=1", "gres/gpu", 3),
        ("cpu=4,gres/gpu:a100=2,gres/gpu=2", "gres/gpu:a100", 2),
        ("cpu=4,gres/gpumem=80,gres/gpu=1", "gres/gpu", 1),
        ("cpu=4,gres/gpumem=80", "gres/gpu", None),
        ("", "gres/gpu", None),
    ],
)
def test_gpus_are_counted_once(tres: str, key: str, expected: int | None) -> None:
    assert amount(tres, sub_key=key, optional=True) == expected


def test_a_sub_key_has_a_type_of_its_own() -> None:
    tres = "billing=4,cpu=00:00:02,energy=512,mem=2G"
    assert amount(tres, sub_key="mem", key_type="IntegerMega") == 2_048
    assert amount(tres, sub_key="cpu", key_type="Time") == 2


def test_a_factor_is_applied_before_rounding() -> None:
    assert amount("1.26", factor="10") == 13
    assert amount("00:01.500", key_type="Time", factor="1000") == 1_500


@pytest.mark.parametrize(
    ("options", "is_remarked"),
    [
        ({"key": "AllocTRES", "sub_key": "billing"}, True),
        ({"key": "AllocTRES", "sub_key": "billing", "factor": "0.5"}, True),
        ({"key": "cpu"}, True),
        ({"key": "AllocTRES", "sub_key": "billing", "factor": 100}, False),
        ({"key": "AllocTRES", "sub_key": "gres/gpu"}, False),
        ({"key": "AllocTRES"}, False),
        ({"key": "cpu", "key_type": "Time"}, False),
    ],
)
def test_a_rule_that_rounds_a_fraction_away_is_remarked(options: dict[str, Any], *, is_remarked: bool) -> None:
    remarks = remarks_on_fractions([component(**options)], {"AllocTRES[billing]", "cpu"})
    assert [remark.split(" can have ")[0] for remark in remarks] == (
        [f"component X: {'cpu' if options['key'] == 'cpu' else 'AllocTRES[billing]'}"] if is_remarked else []
    )


def test_a_factor_keeps_a_fraction() -> None:
    [rounded, exact] = build_components(
        [component(sub_key="billing"), component(sub_key="billing", factor=100)], {"k": "billing=2.50,cpu=4"}
    )
    assert (rounded.amount, exact.amount) == (3, 250)


def test_a_constant_amount_needs_no_column() -> None:
    rule = ComponentRule(name="Slots", value=1)
    assert build_components([rule], {}) == (Component("Slots", 1, ()),)


def test_components_and_scores_apply_only_if_their_condition_holds() -> None:
    score = {"name": "HEPSPEC", "value": 1.1, "only_if": {"key": "Partition", "matches": "^part1$"}}
    rule = component(scores=[score], only_if={"key": "Partition", "matches": "part"})
    row = {"k": "4", "Partition": "part1"}
    assert build_components([rule], row) == (Component("X", 4, (Score("HEPSPEC", 1.1),)),)
    assert build_components([rule], {**row, "Partition": "part2"}) == (Component("X", 4, ()),)
    assert build_components([rule], {**row, "Partition": "other"}) == ()
    assert build_components([rule], {"k": "4"}) == ()


def test_an_optional_component_and_a_score_that_cannot_be_read_are_left_out() -> None:
    score = {"name": "HS23", "key": "s"}
    rules = [component(name="A", scores=[score]), component(name="B", key="b", optional=True)]
    row = PartialRow({"k": "4", "s": "fast"}, {"b": "the list is cut off"})
    left_out = list[LeftOut]()
    assert build_components(rules, row, left_out) == (Component("A", 4, ()),)
    assert [(each.name, each.reason) for each in left_out] == [
        ("A.HS23", "score A.HS23: s: 'fast' is not a number"),
        ("B", "component B: b: the list is cut off"),
    ]
    with pytest.raises(InvalidRecord, match="'fast' is not a number"):
        build_components(rules, row)  # who asks for no list of them has to hear of it


@pytest.mark.parametrize(
    ("text", "zero"),
    [("0", True), ("0.0", True), ("0K", True), ("00:00:00.000", True)]
    + [(text, False) for text in ("", "0.1", "00:00:01", "n/a", "10")],
)
def test_zero_is_told_in_every_form(text: str, zero: bool) -> None:  # noqa: FBT001 a table
    assert is_zero(text) is zero


def test_a_score_from_a_column_is_left_out_where_it_is_not_known() -> None:
    rule = component(scores=[{"name": "HEPSPEC", "key": "specs", "matches": r"HEPSPEC\D+(\d+(?:\.\d+)?)"}])
    [known] = build_components([rule], {"k": "1", "specs": "[HEPSPEC = 12.3; HEPscore23 = 45.6]"})
    [unknown] = build_components([rule], {"k": "1", "specs": "undefined"})
    assert known.scores == (Score("HEPSPEC", 12.3),)
    assert unknown.scores == ()


def test_the_first_site_that_matches_counts() -> None:
    sites = [
        SiteRule.model_validate({"name": "A", "only_if": {"key": "Partition", "matches": "part1"}}),
        SiteRule.model_validate({"name": "B"}),
    ]
    assert find_site(sites, {"Partition": "part1"}) == "A"
    assert find_site(sites, {}) == "B"
    with pytest.raises(InvalidRecord, match="no entry of sites"):
        find_site(sites[:1], {"Partition": "part2"})


def test_a_site_can_be_cut_out_of_a_text_and_depend_on_several_conditions() -> None:
    conditions = [{"key": "User", "matches": "^a"}, {"key": "Queue", "matches": "^q"}]
    sites = [
        SiteRule.model_validate({"key": "Host", "matches": r"\.(\w+)\.org$", "only_if": conditions}),
        SiteRule.model_validate({"name": "B"}),
    ]
    assert find_site(sites, {"Host": "wn1.site.org", "User": "alice", "Queue": "q"}) == "site"
    assert find_site(sites, {"Host": "wn1.site.org", "User": "alice", "Queue": "x"}) == "B"
    assert find_site(sites, {"Host": "wn1", "User": "alice", "Queue": "q"}) == "B"
    assert columns(sites, [], []) == ["Host", "User", "Queue"]


@pytest.mark.parametrize("options", [{}, {"name": "A", "key": "k"}, {"name": "A", "matches": "x"}])
def test_a_site_has_one_source(options: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="either a name or a key"):
        SiteRule.model_validate(options)


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({}, "short", "short"),
        ({}, "None", "None"),
        ({}, "", None),
        ({"default_value": "unknown"}, "", "unknown"),
        ({"key_type": "Id"}, "alice(1000)", "alice"),
        ({"key_type": "Integer"}, "12", "12"),
        ({"key_type": "Integer"}, "Unknown", None),
        ({"key_type": "DateTime"}, "1699348441", "2023-11-07 09:14:01 UTC"),
        ({"key_type": "DateTime"}, "2023-11-07T09:14:01", "2023-11-07 09:14:01 UTC"),
        ({"key_type": "DateTime"}, "2023-11-07T10:14:01+01:00", "2023-11-07 09:14:01 UTC"),
        ({"key_type": "DateTime"}, "None", None),
        ({"key_type": "IntegerMega"}, "4G", "4096"),
        ({"matches": "^([^/]+)/"}, "physics/short", "physics"),
        ({"matches": "^x"}, "physics/short", None),
        ({"key": None, "template": "{k}@{k}"}, "a", "a@a"),
        ({"key": None, "template": "{k}@{other}"}, "a", None),
        ({"key": None, "value": "constant"}, "a", "constant"),
        ({"only_if": {"key": "k", "matches": "b"}}, "a", None),
    ],
)
def test_a_text_becomes_a_label(options: dict[str, Any], text: str, expected: str | None) -> None:
    labels = build_meta([meta(**options)], {"k": text})
    assert labels.meta == ({} if expected is None else {"m": (expected,)})
    assert not labels.left_out


def test_the_first_rule_with_a_value_counts_and_later_ones_may_append() -> None:
    rules = [meta(key="missing"), meta(), meta(key="k2"), meta(key="k3", append=True)]
    assert build_meta(rules, {"k": "1", "k2": "2", "k3": "3"}).meta == {"m": ("1", "3")}


@pytest.mark.parametrize("text", ["x" * 1_025, "x" * 257, "nul\0", " ", "\ud800"])
def test_a_text_that_is_no_label_costs_the_label_alone(text: str) -> None:
    labels = build_owners({"user_id": ("Owner",), "group_id": ("VoName", "Account")}, {"Owner": "al", "VoName": text})
    assert labels.meta == {"user_id": ("al",)}
    assert [(each.name, each.label, each.reason.split(":")[1]) for each in labels.left_out] == [
        ("group_id", True, " VoName")
    ]


def test_of_several_columns_the_first_that_has_a_text_is_the_owner() -> None:
    assert build_owners({"group_id": ("VoName", "Account")}, {"VoName": "", "Account": "a"}).meta == {
        "group_id": ("a",)
    }
    assert build_owners({"group_id": ("VoName",)}, {}).meta == {}


@pytest.mark.parametrize("text", ["x" * 1_025, "nul\0", " "])
def test_a_site_is_never_named_by_a_text_that_is_no_label(text: str) -> None:
    rules = [SiteRule(key="Note"), SiteRule(name="OTHER")]
    assert find_site(rules, {"Note": text}) == "OTHER"


def test_a_label_that_is_not_optional_must_be_there() -> None:
    with pytest.raises(InvalidRecord, match="meta m: k: no value"):
        build_meta([meta(optional=False)], {"k": ""})
    assert build_meta([meta(optional=False, key_allow_empty=True)], {"k": ""}).meta == {}
    with pytest.raises(InvalidRecord, match=r"meta m: k: .* not a JSON object"):
        build_meta([meta(key_type="Json", optional=False)], {"k": "{broken"})


def test_a_bad_label_is_left_out_with_its_reason() -> None:
    labels = build_meta([meta(), meta(name="j", key="c", key_type="Json")], {"k": "x" * 257, "c": "no json"})
    assert labels.meta == {}
    assert [(each.name, each.reason.split(":")[0]) for each in labels.left_out] == [("m", "meta m"), ("j", "meta j")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("{}", {}),
        ('{"voms":"/atlas/Role=production","dn":"/CN=a"}', {"dn": "/CN=a", "voms": "/atlas/Role=production"}),
        ("{'voms': '/atlas', 'headnode': 'gsiftp://arc1:2811/jobs'}", {"voms": "/atlas", "headnode": "gsiftp://arc1:2811/jobs"}),
        ("\"{'voms': '/atlas'}\"", {"voms": "/atlas"}),
        ("{'note': 'it's fine', 'b': 'x'}", {"note": "it's fine", "b": "x"}),
        ('{"n": 1, "f": 1.50, "b": true, "z": null}', {"n": "1", "f": "1.50", "b": "true"}),
        ('{"deep": {"a": [1, "x"]}, "list": [1, 2]}', {"deep": '{"a":[1,"x"]}', "list": "[1,2]"}),
        ('{"e": "\\u00e9\\n"}', {"e": "é\n"}),
    ],
)  # fmt: skip
def test_a_document_becomes_labels(text: str, expected: dict[str, str]) -> None:
    assert parse_labels(text) == expected


@pytest.mark.parametrize("text", ["x", "[1]", '{"a": }', "{'a'}", '"', "{" * 100_000, '{"a":' * 5_000, "{'" * 50_000])
def test_what_is_no_document_has_a_reason(text: str) -> None:
    with pytest.raises(InvalidRecord, match="JSON"):
        parse_labels(text)


@given(st.text())
def test_no_comment_raises_anything_else(text: str) -> None:
    labels = build_meta([meta(name="j", key_type="Json"), meta()], {"k": text}, reserved=["site_id"])
    assert "site_id" not in labels.meta


def test_users_cannot_take_names_that_are_configured_or_reserved() -> None:
    rules = [meta(name="comment", key="c", key_type="Json"), meta(name="Partition", key="p")]
    comment = '{"Partition": "vip", "user_id": "root", "voms": "/atlas", "empty": ""}'
    labels = build_meta(rules, {"c": comment}, reserved=["user_id"])
    assert labels.meta == {"voms": ("/atlas",)}
    assert len(labels.left_out) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"key_type": "String"},
        {"key": None},
        {"value": 3},
        {"default_value": -1},
        {"typo": 1},
        {"only_if": {"key": "k", "matches": "("}},
        {"scores": [{"name": "S"}]},
        {"scores": [{"name": "S", "value": -1}]},
        {"name": " "},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_when_it_is_loaded(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        component(**options)


def test_the_columns_of_all_rules_are_named_once() -> None:
    sites = [SiteRule.model_validate({"name": "A", "only_if": {"key": "Partition", "matches": "x"}})]
    rules = [component(scores=[{"name": "S", "value": 1, "only_if": {"key": "Partition", "matches": "x"}}])]
    assert columns(sites, [meta(key=None, template="{Account}/{k}")], rules) == ["Partition", "Account", "k"]


def test_a_compiled_expression_is_kept() -> None:
    assert isinstance(meta(matches="a").matches, re.Pattern)
