"""AUDITOR's ``rbac_config``: who was let in is let in, and nobody gets more."""

from typing import Any, Final

import pytest

from auditord.config.loading import load_text
from auditord.config.shown import to_yaml
from auditord.hooks import load_hooks
from auditord_builtin.auditor.server_config import RULES, import_access
from auditord_hookspecs.config_import import ConfigImport

TLS: Final = {"use_tls": True}
RBAC: Final[dict[str, Any]] = {
    "enforce_rbac": True,
    "monitoring_role_cn": ["prometheus"],
    "write_access_cn": ["ce.example.org", "both"],
    "read_access_cn": ["apel", "both", "cms"],
    "base_policies": [["mine", "/metrics", "GET"]],
    "data_access_rules": [
        {"reader_cn": "cms", "meta_info": {"group_id": ["cms", "uscms"]}},
        {"reader_cn": "atlas", "meta_info": {"group_id": ["atlas"], "site_id": ["KIT"]}},
    ],
}


def imported_access(tls: Any, rbac: Any) -> ConfigImport:
    return import_access({"tls_config": tls, "rbac_config": rbac})


def rules(rbac: dict[str, Any]) -> dict[str, list[str]]:
    return {each["common_name"]: each["roles"] for each in imported_access(TLS, rbac).sections[f"{RULES}.rules"]}


def test_each_name_gets_the_roles_of_its_lists() -> None:
    plain = {key: value for key, value in RBAC.items() if key != "data_access_rules"}
    assert rules(plain) == {
        "prometheus": ["monitor"],
        "ce.example.org": ["writer"],
        "both": ["writer", "reader"],
        "apel": ["reader"],
        "cms": ["reader"],
    }


def test_a_rule_stands_in_the_place_of_reading_everything() -> None:
    imported = imported_access(TLS, RBAC)
    assert rules(RBAC)["cms"] == ["reader_1"]
    assert rules(RBAC)["atlas"] == ["reader_2"]
    assert imported.sections["access.roles.reader_1"]["rows"] == {"group_id": ["cms", "uscms"]}
    assert imported.sections["access.roles.reader_2"]["rows"] == {"group_id": ["atlas"], "site_id": ["KIT"]}


def test_readers_without_a_rule_stay_restricted() -> None:
    imported = imported_access(TLS, RBAC)
    assert rules(RBAC)["apel"] == ["reader_without_rule"]
    assert rules(RBAC)["both"] == ["writer", "reader_without_rule"]
    rows = imported.sections["access.roles.reader_without_rule"]["rows"]
    assert rows == {"group_id": ["cms", "uscms", "atlas"], "site_id": ["KIT"]}
    assert "without a rule" in imported.comments["access.roles.reader_without_rule"]


@pytest.mark.parametrize("rbac", [None, {**RBAC, "enforce_rbac": False}])
def test_without_roles_every_certificate_is_let_in(rbac: Any) -> None:
    imported = imported_access(TLS, rbac)
    assert imported.sections[f"{RULES}.rules"] == [{"subject": "*", "roles": ["reader", "writer", "monitor"]}]
    assert ("rbac_config" in imported.dropped) is (rbac is not None)


def test_without_tls_auditor_knew_nobody() -> None:
    imported = imported_access({"use_tls": False}, RBAC)
    assert imported.sections == {}
    assert "rbac_config" in imported.dropped


def test_a_name_with_an_asterisk_lets_in_nobody_else() -> None:
    imported = imported_access(TLS, {"enforce_rbac": True, "write_access_cn": ["*.example.org", "ce"]})
    assert [each["common_name"] for each in imported.sections[f"{RULES}.rules"]] == ["ce"]
    assert any("*.example.org" in option for option in imported.dropped)


def test_the_result_is_a_configuration() -> None:
    values: dict[str, Any] = {}
    for path, value in imported_access(TLS, RBAC).sections.items():
        *sections, name = path.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    loaded = load_text(to_yaml(values), "imported", load_hooks([]).kinds, {"HOME": "/h"})
    assert set(loaded.access.known_roles()) >= {"reader_1", "reader_2", "reader_without_rule"}
    assert len(getattr(loaded.authenticators["certificates"], "rules")) == 6  # noqa: B009 the kind's own option
