"""Rights at AUDITOR's server, from its ``rbac_config`` to our roles and client certificates."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from auditord.config.documents import is_list, is_section
from auditord_hookspecs.config_import import ConfigImport, Document

RULES: Final = "authenticators.certificates"

_LISTS: Final = {"monitoring_role_cn": "monitor", "write_access_cn": "writer", "read_access_cn": "reader"}
_TRUE: Final = frozenset({True, "true"})
_ANYBODY: Final = "AUDITOR let everybody in who has a certificate, to read, to write and to see metrics"
_SHARED: Final = "AUDITOR restricted readers without a rule of their own to what any rule names, and so does this role"
_POLICIES: Final = "write what a role of yours may do in access.roles"
_NO_RBAC: Final = "AUDITOR ignored it: neither enforce_rbac nor use_tls, without which it recognised nobody, was on"
_WILDCARD: Final = "a name with * would let more in than this one: write the rule yourself, by subject"


def import_access(document: Document) -> ConfigImport:
    """The roles and rules that let in whom AUDITOR let in; nobody gets more than there."""
    result, tls, rbac = ConfigImport(document, RULES), document.get("tls_config"), document.get("rbac_config")
    secured = is_section(tls) and tls.get("use_tls") in _TRUE
    if not is_section(rbac) or rbac.get("enforce_rbac") not in _TRUE or not secured:
        _without_roles(result, rbac, secured=secured)
        return result
    names = _names(rbac)
    for number, rule in enumerate(_data_rules(rbac), start=1):
        _put_reader(result, names, rule, number)
    _restrict_other_readers(result, names, rbac)
    if "base_policies" in rbac:
        result.dropped["rbac_config.base_policies"] = _POLICIES
    _put_rules(result, names)
    return result


def _without_roles(result: ConfigImport, rbac: Any, *, secured: bool) -> None:
    if is_section(rbac):
        result.dropped["rbac_config"] = _NO_RBAC
    if secured:
        result.put("kind", "certificates")
        result.put("rules", [{"subject": "*", "roles": ["reader", "writer", "monitor"]}], _ANYBODY)


def _names(rbac: Mapping[str, Any]) -> dict[str, list[str]]:
    """The roles of each common name."""
    names: dict[str, list[str]] = {}
    for option, role in _LISTS.items():
        for name in _listed(rbac.get(option)):
            names.setdefault(name, []).append(role)
    return names


def _listed(value: Any) -> Sequence[str]:  # Any: what the file says
    return [str(each) for each in value] if is_list(value) else []


def _data_rules(rbac: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    rules = rbac.get("data_access_rules")
    return [rule for rule in rules if is_section(rule) and rule.get("meta_info")] if is_list(rules) else []


def _rows(rule: Mapping[str, Any]) -> Mapping[str, list[str]]:
    return {str(key): list(_listed(values)) for key, values in dict(rule["meta_info"]).items()}


def _put_reader(result: ConfigImport, names: dict[str, list[str]], rule: Mapping[str, Any], number: int) -> None:
    """A role for one rule, in the place of the right to read everything."""
    roles = names.setdefault(str(rule["reader_cn"]), [])
    if "reader" in roles:
        roles.remove("reader")
    roles.append(_put_role(result, f"reader_{number}", _rows(rule)))


def _put_role(result: ConfigImport, name: str, rows: Mapping[str, list[str]]) -> str:
    result.sections[f"access.roles.{name}"] = {"permissions": ["read"], "rows": dict(rows)}
    return name


def _restrict_other_readers(result: ConfigImport, names: Mapping[str, list[str]], rbac: Mapping[str, Any]) -> None:
    """Give readers without a rule what AUDITOR's one set for all gave: values of every key that any rule names."""
    others = [roles for roles in names.values() if "reader" in roles]
    rows: dict[str, list[str]] = {}
    for rule in _data_rules(rbac):
        for key, values in _rows(rule).items():
            known = rows.setdefault(key, [])
            known += [value for value in values if value not in known]
    if others and rows:
        role = _put_role(result, "reader_without_rule", rows)
        result.comments[f"access.roles.{role}"] = _SHARED
        for roles in others:
            roles[roles.index("reader")] = role


def _put_rules(result: ConfigImport, names: Mapping[str, Sequence[str]]) -> None:
    rules = [{"common_name": name, "roles": list(roles)} for name, roles in names.items() if "*" not in name]
    result.dropped |= {f"rbac_config, certificate '{name}'": _WILDCARD for name in names if "*" in name}
    if not rules:
        result.dropped["rbac_config"] = (
            "it names nobody; without a rule nobody gets in, so write authenticators yourself"
        )
        return
    result.put("kind", "certificates")
    result.put("rules", rules)
