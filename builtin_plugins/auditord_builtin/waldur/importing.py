"""Import the configuration of the Waldur site agent: its file becomes one instance per offering."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from auditord_builtin.waldur.config import INTERVAL, RECORDED
from auditord_hookspecs import ImportedConfig
from auditord_hookspecs.config_import import UNKNOWN, ConfigImport, Document
from auditord_hookspecs.proposals import Host, Proposal

PERIOD: Final = "WALDUR_SITE_AGENT_REPORT_PERIOD_MINUTES"
LEVEL: Final = "WALDUR_SITE_AGENT_LOG_LEVEL"

_OTHER_MODE: Final = "belongs to another mode of the agent; reports do not need it"
_DROPPED: Final = {
    "sentry_dsn": "errors are in the log, in the metrics and on the status page",
    "elastic_apm_server_url": "see sentry_dsn",
    "expose_backend_error_details": "only amounts are sent to Waldur",
    "log_shipping": "the daemon logs to standard error or the journal",
}
_OFFERING_DROPPED: Final = {
    "backend_type": "the plugin reports records, from any batch system",
    "order_processing_backend": _OTHER_MODE,
    "membership_sync_backend": _OTHER_MODE,
    "username_management_backend": _OTHER_MODE,
    "mqtt_enabled": _OTHER_MODE,
    "websocket_use_tls": _OTHER_MODE,
}
_PREFIXES: Final = ("customer_prefix", "project_prefix", "allocation_prefix")
_CHOSEN: Final = (
    "the agent's guide selects accounts by these prefixes, but its code reported every resource of the offering;"
    " without this option, all are reported. auditord waldur diagnose names the resources that are left out"
)
_SETTINGS_DROPPED: Final = {
    **dict.fromkeys(_PREFIXES, "not all prefixes are set, so the agent may have created accounts with any name"),
    "execution_mode": "the agent read usage with sacct in every mode",
}
_COMPONENT_DROPPED: Final = {
    "accounting_type": "Waldur knows how a component is billed",
    "unit_factor_reporting": "the agent's backend for Slurm ignored it",
}
_KEPT: Final = ("waldur_api_url", "waldur_offering_uuid", "oidc_token_url", "oidc_client_id")
_SECRETS: Final = ("waldur_api_token", "oidc_client_secret")
_TOP: Final = ("offerings", "timezone", "global_proxy", "log_level", "reporting_periods")
_OFFERING: Final = {
    *(*_KEPT, *_SECRETS, "name", "verify_ssl", "omit_anomalous_usage_components"),
    *("reporting_backend", "backend_settings", "backend_components"),
}
_SETTINGS: Final = ("slurm_bin_path", "cluster_name")
_COMPONENT: Final = ("measured_unit", "label", "unit_factor", "target_components")
_IGNORED: Final = "reports do not use it"

_ACCOUNTS: Final = (
    "records must have Slurm's account: in the Slurm collector, set"
    " meta: [{name: account, key: Account, key_type: String}]; the agent counted ReqTRES, but records have AllocTRES:"
    " see auditord waldur compare, and use --allow-decrease where AllocTRES is less"
)
_TARGETS: Final = (
    "with target_components, the agent rounded to whole numbers and ignored other components' unit_factor; auditord"
    " does neither"
)


def import_config(document: Document) -> ImportedConfig | None:
    """Translate the agent's file and environment, or return None if the file is not the agent's."""
    return import_agent(document, os.environ)


def import_agent(document: Document, environment: Mapping[str, str]) -> ImportedConfig | None:
    """Translate the agent's file and environment, or return None if the file is not the agent's.

    Raises:
        ValueError: the agent would refuse a value.
    """
    if not isinstance(document.get("offerings"), list):
        return None
    offerings: list[Any] = document["offerings"]  # Any: an operator's YAML
    if not any(isinstance(each, Mapping) and "waldur_offering_uuid" in each for each in offerings):
        return None
    for number, offering in enumerate(offerings):
        place = f"offerings[{number}]"
        _check_mapping(offering, place)
        _check_mapping(offering.get("backend_settings") or {}, f"{place}.backend_settings")
        components = offering.get("backend_components")
        _check_mapping(components, f"{place}.backend_components")
        for key, component in components.items():
            _check_mapping(component, f"{place}.backend_components.{key}")
    whole = ConfigImport(document, "plugins")
    names: list[str] = []
    for offering in offerings:
        words = re.sub("[^a-z0-9]+", "_", str(offering.get("name", "")).lower()).strip("_")
        plain = words if words.startswith("waldur") else f"waldur_{words}".rstrip("_")
        numbered = (f"{plain}_{number}" for number in range(2, len(offerings) + 2))
        name = plain if plain not in names else next(each for each in numbered if each not in names)
        names.append(name)
        result = ConfigImport(offering, f"plugins.{name}")
        result.remark("", f"{offering.get('name', name)}. {'' if whole.comments else _ACCOUNTS}".rstrip())
        _import_offering(result, f"offerings.{name}.", document, environment)
        whole.include(result)
    if level := document.get("log_level"):
        whole.put_level(level)
    elif level := environment.get(LEVEL):  # the agent's guide names this variable, but the agent never read it
        whole.put_level(level, LEVEL)
    whole.drop(document, _TOP, _DROPPED, other=UNKNOWN.replace("AUDITOR", "the agent"))
    return whole.result("the Waldur site agent")


def _check_mapping(given: Any, place: str) -> None:  # Any: an operator's YAML
    if not isinstance(given, Mapping):
        raise ValueError(f"{place}: expected options below it, got {'nothing' if given is None else repr(given)}")  # noqa: TRY004 callers report ValueErrors


def _import_offering(result: ConfigImport, place: str, document: Document, environment: Mapping[str, str]) -> None:
    offering = result.document
    result.put("kind", "waldur")
    if PERIOD in environment:
        minutes = int(environment[PERIOD])
        result.put("interval", f"{minutes}m", f"{PERIOD}; here the time from start to start")
        if timedelta(minutes=minutes) < INTERVAL:
            result.put("retry_for", f"{minutes * 20}s", "shorter than the interval")
    for option in (*_KEPT, *_SECRETS):
        if offering.get(option):
            remark = "better as a reference: file:/path, env:NAME or credential:name" if option in _SECRETS else ""
            result.put(option, offering[option], remark)
    if offering.get("verify_ssl") is False:
        result.put("verify_ssl", value=False)
    if offering.get("omit_anomalous_usage_components") is True:
        result.put("omit_anomalous_usage_components", value=True)
    for theirs, ours in (("timezone", "timezone"), ("global_proxy", "proxy"), ("reporting_periods",) * 2):
        if document.get(theirs):
            result.put(ours, document[theirs])
    _import_backend(result, place)
    stomp = {option: _OTHER_MODE for option in offering if option.startswith("stomp_")}
    result.drop(offering, _OFFERING, {**_OFFERING_DROPPED, **stomp}, place=place, other=_IGNORED)
    if (backend := str(offering.get("reporting_backend", ""))) not in {"", "slurm"}:
        result.dropped[f"{place}reporting_backend"] = f"{backend} reported other amounts; compare them"


def _import_backend(result: ConfigImport, place: str) -> None:
    settings = result.section("backend_settings")
    if slurm := {option: str(settings[option]) for option in _SETTINGS if settings.get(option)}:
        result.put("slurm", slurm, "only for --source sacct, compare and diagnose")
    prefixes = list(dict.fromkeys(str(settings.get(option) or "") for option in _PREFIXES))
    if all(prefixes):
        result.put("account_prefixes", prefixes, _CHOSEN)
    used = (*_SETTINGS, *_PREFIXES) if all(prefixes) else _SETTINGS
    result.drop(settings, used, _SETTINGS_DROPPED, place=f"{place}backend_settings.", other=_IGNORED)

    components: Mapping[str, Document] = result.document["backend_components"]
    targets = any(each.get("target_components") for each in components.values())
    known = {key: {option: each[option] for option in _COMPONENT if option in each} for key, each in components.items()}
    result.put("backend_components", known, _TARGETS if targets else "")

    resources = [name for key, each in known.items() for name in each.get("target_components") or (key,)]
    # Collectors do not write these resources, so each needs an entry in recorded_as.
    unknown = [name for name in dict.fromkeys(resources) if name not in RECORDED]
    others = ", ".join(name for name in unknown if name != "gpu")
    remarks = [f"no collector records {others} by default: add components of these names"] if others else []
    remarks += ["the agent reported zeros, since Slurm's name for GPUs is gres/gpu"] if "gpu" in unknown else []
    recorded = {name: {"component": ["GPU" if name == "gpu" else name]} for name in unknown}
    if recorded:
        result.put("recorded_as", recorded, "; ".join(remarks))

    for key, each in components.items():
        result.drop(each, _COMPONENT, _COMPONENT_DROPPED, place=f"{place}backend_components.{key}.", other=_IGNORED)


def detect(host: Host) -> Proposal | None:
    """Propose to import the configuration of a Waldur site agent on this host."""
    files = host.find("/etc/waldur/*.yaml", "/etc/waldur/*.yml")
    return Proposal(f"Waldur site agent, configured in {files[0].parent}", imports=files) if files else None
