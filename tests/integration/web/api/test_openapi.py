"""The description at /openapi.json: valid, complete, and true of every answer that generated requests get."""

# schemathesis types its checks in part; mypy checks the rest.
# pyright: reportUnknownVariableType=false

import ast
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from auditord.testing.daemon import TestDaemon, running_daemon
from auditord.web.api.handlers import API
from auditord.web.operations import list_operations
from auditord.web.problems import PREFIX
from tests.api_server import record

EXAMPLES = 20
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]
OPERATIONS = {each.name for each in list_operations(API)}
GUARDED = {each.name for each in list_operations(API) if each.guarded}
"""The operations that act, and those that show raw input."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDaemon]:
    with running_daemon(tmp_path_factory.mktemp("openapi"), {}) as running:
        yield running


@pytest.fixture(scope="module")
def described(daemon: TestDaemon) -> Any:  # Any: schemathesis' schema, generic in the same way
    return schemathesis.openapi.from_url(f"{daemon.url}/openapi.json")


def operations(described: Any) -> dict[str, Any]:  # Any: schemathesis' operations
    found: list[Any] = list(map(_made, described.get_all_operations()))
    return {operation.definition.raw["operationId"]: operation for operation in found}


def _made(result: Any) -> Any:  # Any: an operation, or what is wrong with its description
    return result.ok()


def test_it_is_valid_and_complete(described: Any) -> None:
    described.validate()
    assert described.raw_schema["openapi"].startswith("3.1")
    assert operations(described).keys() == OPERATIONS
    assert all(path.startswith(PREFIX) for path in described.raw_schema["paths"])
    for wire in ("POST /record", "GET /records", "GET /health_check", "GET /metrics"):
        assert wire in described.raw_schema["info"]["description"]


def test_every_member_of_every_answer_is_described(described: Any) -> None:
    schemas = described.raw_schema["components"]["schemas"]
    assert {"Problem", "RecordPage", "Verdicts", "HealthReport", "Instances", "Sums"} <= schemas.keys()
    assert "Args:" not in str(schemas)
    assert schemas["Verdict"]["properties"]["verdict"]["description"].startswith("``added``")
    assert all(schema["description"] for schema in schemas.values())


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("sumUpRecords", {"by": ["0"]}),
        ("sumUpRecords", {"to": ""}),
        ("listRecords", {"limit": 0}),
        ("listRecords", {"record_id": ""}),
        ("listRecords", {"cursor": "2026-02-30T00:00:00Z,r"}),
        ("listRecords", {"format": "xml"}),
        ("listQuarantine", {"task": "x" * 257}),
        ("listQuarantine", {"limit": 0}),
        ("listQuarantine", {"after": -1}),
    ],
)
def test_what_the_schema_forbids_is_refused(described: Any, name: str, query: dict[str, Any]) -> None:
    operation = operations(described)[name]
    (parameter,) = query
    (schema,) = [each["schema"] for each in operation.definition.raw["parameters"] if each["name"] == parameter]
    assert not jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid(query[parameter])
    response = operation.Case(query=query).call()
    assert (response.status_code, response.json()["parameter"]) == (HTTPStatus.BAD_REQUEST, parameter)


@pytest.mark.parametrize("name", ["getRecord", "reportSite", "runInstance"])
def test_a_blank_name_in_a_path_is_forbidden_by_the_schema(described: Any, name: str) -> None:
    (parameter, *_) = operations(described)[name].definition.raw["parameters"]
    assert parameter["in"] == "path"
    assert not jsonschema_rs.is_valid(parameter["schema"], " ")
    assert jsonschema_rs.is_valid(parameter["schema"], " a name")


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_answer_is_as_described(described: Any, name: str) -> None:
    examples = EXAMPLES if name != "addRecords" else 4  # a list of records takes seconds to make up

    @given(case=operations(described)[name].as_strategy())
    @settings(max_examples=examples, deadline=None, suppress_health_check=SLOW, phases=[Phase.generate])
    def check(case: Any) -> None:  # Any: a request that was made up
        response = case.call(timeout=60)
        # Products of numbers have limits that no schema can tell; the refusal itself must be as described.
        is_product = response.status_code == HTTPStatus.BAD_REQUEST and b"in one query" in response.content
        case.validate_response(response, excluded_checks=[positive_data_acceptance] if is_product else None)
        assert response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR
        if name in GUARDED:
            assert response.status_code == HTTPStatus.FORBIDDEN

    check()


def test_answers_that_hold_something_are_as_described(described: Any, daemon: TestDaemon) -> None:
    del daemon
    found = operations(described)
    added = found["addRecords"].Case(body=[record("full"), {}], media_type="application/json").call_and_validate()
    assert added.status_code == HTTPStatus.MULTI_STATUS
    page = found["listRecords"].Case(query={"limit": 1}).call_and_validate()
    assert page.json()["records"]
    sums = found["sumUpRecords"].Case(query={"by": ["meta:site_id"], "usage": ["Cores:HEPscore23"]}).call_and_validate()
    assert sums.json()["groups"]
    one = found["getRecord"].Case(path_parameters={"record_id": "full"}).call_and_validate()
    assert one.status_code == HTTPStatus.OK


def test_nothing_is_lost_without_docstrings(described: Any) -> None:
    source = "import msgspec; from auditord.web.problem_shapes import Verdicts; print(msgspec.json.schema(Verdicts))"
    done = subprocess.run([sys.executable, "-OO", "-c", source], capture_output=True, check=True, text=True)
    bare = ast.literal_eval(done.stdout)["$defs"]
    for name, schema in bare.items():
        expected = described.raw_schema["components"]["schemas"][name]["properties"]
        assert {member: each["description"] for member, each in schema["properties"].items()} == {
            member: each["description"] for member, each in expected.items()
        }
