"""Configurations of the plugin ``waldur`` for tests."""

from typing import Any, Final

from auditord_builtin.waldur.config import WaldurConfig

OFFERING: Final = "3f2b6a4e-0c1d-4e5f-8a9b-0c1d2e3f4a5b"
COMPONENTS: Final = {
    "cpu": {"measured_unit": "k-Hours", "unit_factor": 60000},
    "mem": {"measured_unit": "gb-Hours", "unit_factor": 61440},
}


def waldur_config(**options: Any) -> WaldurConfig:  # Any: as they would stand in a file
    """An offering with processors and memory, and whatever else matters to the test."""
    access = {"waldur_api_url": "https://waldur.example/api/", "waldur_api_token": "secret"}
    sections = {**access, "waldur_offering_uuid": OFFERING, "backend_components": COMPONENTS, **options}
    return WaldurConfig.model_validate(sections)
