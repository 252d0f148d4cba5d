"""The options of the plugin, and what is wrong with them."""

from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from tests.waldur_settings import waldur_config


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("https://portal.example.ai/api/", "https://portal.example.ai/api/"),  # the agent made portal.example. of it
        ("https://portal.example.ai/api", "https://portal.example.ai/api/"),
        ("https://portal.example.ai", "https://portal.example.ai/api/"),
        ("http://127.0.0.1:8080/waldur/api//", "http://127.0.0.1:8080/waldur/api/"),
    ],
)
def test_the_address_of_the_api_keeps_every_letter_of_the_host(written: str, meant: str) -> None:
    assert waldur_config(waldur_api_url=written).waldur_api_url == meant


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"waldur_api_url": "portal.example.org"}, "is not an address such as"),
        ({"waldur_api_url": "https://h/api/?a=1"}, "is not an address such as"),
        ({"waldur_offering_uuid": "cluster"}, "waldur_offering_uuid"),
        ({"waldur_api_token": None}, "either waldur_api_token or all of"),
        ({"oidc_client_id": "me"}, "either waldur_api_token or all of"),
        ({"waldur_api_token": None, "oidc_client_id": "me", "oidc_token_url": "https://h"}, "either waldur_api_token"),
        ({"timezone": "Tallinn"}, "is not a time zone such as"),
        ({"reporting_periods": 0}, "reporting_periods"),
        ({"reporting_periods": 13}, "reporting_periods"),
        ({"backend_components": {}}, "backend_components"),
        ({"backend_components": {"gpu": {"unit_factor": 60}}}, "Slurm's name for GPUs is gres/gpu"),
        ({"backend_components": {"node": {}}}, "records have cpu, mem, gres/gpu, not 'node'; add it to recorded_as"),
        ({"backend_components": {"cpu": {"unit_factor": 0}}}, "unit_factor"),
        ({"backend_components": {"cpu": {"unit_factor": True}}}, "unit_factor"),
        ({"backend_components": {"cpu": {"unit_factor": "many"}}}, "unit_factor"),
        ({"backend_components": {"cpu": {"unit_factor": "1/0"}}}, "is not a number such as"),
        ({"backend_components": {"cpu": {"factor": 60000}}}, "Extra inputs are not permitted"),
        ({"retry_for": "30m"}, "shorter than the interval"),
        ({"retry_for": "10m", "interval": "5m"}, "shorter than the interval"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError) as refused:
        waldur_config(**options)
    assert complaint in str(refused.value)


def test_a_factor_is_taken_as_it_is_written() -> None:
    config = waldur_config(
        backend_components={"cpu": {"unit_factor": 0.1}},
        recorded_as={"mem": {"component": ["Memory"], "scale": "1/1048576"}},
    )
    assert config.backend_components["cpu"].unit_factor == Fraction(1, 10)
    assert config.recorded["mem"].scale == Fraction(1, 2**20)
    assert config.model_dump(mode="json")["backend_components"]["cpu"]["unit_factor"] == "1/10"


def test_oidc_instead_of_a_token() -> None:
    oidc = {"oidc_token_url": "https://sso/token", "oidc_client_id": "me", "oidc_client_secret": "hush"}
    assert "hush" not in repr(waldur_config(waldur_api_token=None, **oidc))


def test_prefixes_choose_accounts_whatever_the_case() -> None:
    config = waldur_config(account_prefixes=["HPC_"])
    assert config.selects("hpc_physics")
    assert not config.selects("physics_hpc_")
    assert waldur_config().selects("anything")
