from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

import pytest
from pydantic import ValidationError

from auditord_builtin.apel.config import ApelConfig, MetaField

Options = dict[str, Any]  # Any: what stands in a file

SCORE: Final = {"name": "HEPscore23", "component_name": "Cores"}
SMALLEST: Final[Options] = {
    "site": {"sites_to_report": {"SITE-A": "a"}},
    "messaging": {"client_cert": "/etc/cert.pem", "client_key": "/etc/key.pem"},
    "summary_fields": {
        "mandatory": {
            "VO": {"type": "MetaField", "name": "voms"},
            "SubmitHost": {"type": "MetaField", "name": ["submit_host", "submithost"]},
        }
    },
}


def options(**changes: Any) -> Options:  # Any: as in a file; a__b changes b within a
    made = deepcopy(SMALLEST)
    for path, value in changes.items():
        *sections, last = path.split("__")
        inner = made
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return made


def test_the_least_that_must_be_said_is_enough() -> None:
    config = ApelConfig.model_validate(SMALLEST)
    assert config.site.sites_to_report == {"SITE-A": ("a",)}
    assert [(each.type, each.score, each.component) for each in config.scores] == [
        ("HEPscore23", "HEPscore23", "Cores")
    ]


def test_a_score_that_fields_name_is_the_benchmark() -> None:
    config = ApelConfig.model_validate(
        options(
            site__benchmark_type="HEPSPEC",
            summary_fields__mandatory__NormalisedCpuDuration={"type": "NormalisedField", "score": SCORE},
            summary_fields__mandatory__NormalisedWallDuration={"type": "NormalisedWallDurationField", "score": SCORE},
        )
    )
    assert [(each.type, each.score, each.component) for each in config.scores] == [("hepspec", "HEPscore23", "Cores")]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"site__sites_to_report": {"A": ["a", "b"], "B": ["b"]}}, "b: listed twice"),
        ({"site__sites_to_report": {"A": "a", "a": "b"}}, "differ only in case"),
        ({"site__sites_to_report": {}}, "at least 1"),
        ({"site__benchmark_type": "specint"}, "hepspec"),
        ({"summary_fields__mandatory__Flavour": {"type": "ConstantField", "value": 1}}, "Extra inputs"),
        ({"summary_fields__mandatory__VO": {"type": "RecordField", "name": "record_id"}}, "MetaField"),
        ({"summary_fields__mandatory__CpuDuration": {"type": "RecordField", "name": "stop_time"}}, "is not a duration"),
        ({"summary_fields__mandatory__CpuDuration": {"type": "ConstantField", "value": "1s"}}, "must be a number"),
        ({"summary_fields__mandatory__CpuDuration": {"type": "ComponentField", "name": "C", "divide_by": 0}}, "than 0"),
        (
            {"summary_fields__mandatory__VO": {"type": "MetaField", "name": "a", "function": {"name": "upper"}}},
            "vo_mapping",
        ),
        ({"summary_fields__mandatory__VO": {"type": "MetaField", "name": "a", "regex": "("}}, "regular expression"),
        ({"message_type": "individual_jobs"}, "individual_job_fields is needed"),
        (
            {
                "summary_fields__mandatory__NormalisedCpuDuration": {"type": "NormalisedField", "score": SCORE},
                "benchmarks": [{"type": "HEPscore23", "score": "h"}],
            },
            "keep one",
        ),
        (
            {
                "summary_fields__mandatory__NormalisedCpuDuration": {"type": "NormalisedField", "score": SCORE},
                "summary_fields__mandatory__NormalisedWallDuration": {
                    "type": "NormalisedField",
                    "score": {"name": "HS06", "component_name": "Cores"},
                },
            },
            "mixture",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        ApelConfig.model_validate(options(**changes))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ({"name": "voms"}, "/atlas/Role=production", "/atlas/Role=production"),
        ({"name": "voms"}, None, "None"),
        ({"name": "voms", "regex": "(?<=/).*?(?=/|$)"}, "/atlas/higgs/Role=production/Capability=NULL", "atlas"),
        ({"name": "voms", "regex": "(?<=/).*?(?=/Role|$)"}, "/atlas/higgs/Role=production", "atlas/higgs"),
        ({"name": "voms", "regex": "(?=Role).*?(?=/|$)"}, "/atlas/higgs/Role=production/x", "Role=production"),
        ({"name": "voms", "regex": "(?=Role).*?(?=/|$)"}, "/atlas", "None"),
        ({"name": "g", "function": {"name": "vo_mapping", "parameters": {"atl": "atlas", "": "x"}}}, "atlsgm", "atlas"),
        ({"name": "g", "function": {"name": "vo_mapping", "parameters": {"atl": "atlas"}}}, "cms", "None"),
    ],
)
def test_a_label_becomes_a_text_as_with_auditor(field: Mapping[str, Any], value: str | None, text: str) -> None:
    assert MetaField.model_validate(field).text(value) == text


@pytest.mark.parametrize(
    ("fqan", "vo", "group", "role"),
    [
        ("/atlas/higgs/Role=production/Capability=NULL", "atlas", "/atlas/higgs", "Role=production"),
        ("/dteam;/ops/Role=lcgadmin", "dteam", "/dteam", "None"),
        ("/dteam/Role=NULL;/ops", "dteam", "/dteam", "Role=NULL"),
        ("/atlas/role=pilot", "atlas", "/atlas", "role=pilot"),
        ("/atlas/ROLE=pilot/x", "atlas", "/atlas", "ROLE=pilot"),
        ("ops", "ops", "None", "None"),
        ("ops/x;/atlas", "ops/x", "None", "None"),
        ("/", "None", "None", "None"),
        (";/atlas", "None", "None", "None"),
    ],
)
def test_a_fqan_is_read_as_apel_reads_it(fqan: str, vo: str, group: str, role: str) -> None:
    read = [
        MetaField.model_validate({"name": "voms", "function": {"name": name}})
        for name in ("fqan_vo", "fqan_group", "fqan_role")
    ]
    assert [field.text(fqan) for field in read] == [vo, group, role]
    assert [field.text(None) for field in read] == ["None"] * 3


@pytest.mark.parametrize("function", [{"name": "vo_mapping"}, {"name": "fqan_vo", "parameters": {"a": "b"}}])
def test_parameters_belong_to_vo_mapping_alone(function: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="parameters"):
        MetaField.model_validate({"name": "voms", "function": function})
