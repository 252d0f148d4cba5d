"""From a configuration file of the Waldur site agent to ours: one instance for each offering."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from auditord_builtin.waldur.components import RECORDED
from auditord_builtin.waldur.config import INTERVAL
from auditord_hookspecs import ImportedConfig

Document = Mapping[str, Any]  # Any: an operator's YAML

PERIOD: Final = "WALDUR_SITE_AGENT_REPORT_PERIOD_MINUTES"
LEVEL: Final = "WALDUR_SITE_AGENT_LOG_LEVEL"

_OTHER_MODE: Final = "of another of the agent's modes; reports do not need it"
_DROPPED: Final = {
    "sentry_dsn": "faults are in the log, the metrics and on the status page",
    "elastic_apm_server_url": "see sentry_dsn",
    "expose_backend_error_details": "nothing but amounts is sent to Waldur",
    "log_shipping": "the daemon logs to standard error or the journal",
}
_OFFERING_DROPPED: Final = {
    "backend_type": "what is reported are records, whatever made them",
    "order_processing_backend": _OTHER_MODE,
    "membership_sync_backend": _OTHER_MODE,
    "username_management_backend": _OTHER_MODE,
    "mqtt_enabled": _OTHER_MODE,
    "websocket_use_tls": _OTHER_MODE,
}
_PREFIXES: Final = ("customer_prefix", "project_prefix", "allocation_prefix")
_CHOSEN: Final = (
    "the agent's guide chooses accounts by its prefixes, its code reported every resource of the offering; without this"
    " all are reported, and auditord waldur diagnose names what is left out"
)
_SETTINGS_DROPPED: Final = {
    **dict.fromkeys(_PREFIXES, "not all prefixes are given, so the agent may have made accounts of any name"),
    "execution_mode": "the agent read usage with sacct in every mode",
}
_COMPONENT_DROPPED: Final = {
    "accounting_type": "Waldur knows how a component is billed",
    "unit_factor_reporting": "the agent's backend for Slurm ignored it",
}
_KEPT: Final = ("waldur_api_url", "waldur_offering_uuid", "oidc_token_url", "oidc_client_id", "oidc_client_secret")
_SECRETS: Final = ("waldur_api_token", "oidc_client_secret")
_TOP: Final = ("offerings", "timezone", "global_proxy", "log_level", "reporting_periods")
_OFFERING: Final = {
    *_KEPT,
    "name",
    "waldur_api_token",
    "verify_ssl",
    "reporting_backend",
    "backend_settings",
    "omit_anomalous_usage_components",
}
_SETTINGS: Final = ("slurm_bin_path", "cluster_name")
_COMPONENT: Final = ("measured_unit", "label", "unit_factor", "target_components")
_LEVELS: Final = {"critical": "error"}
_IGNORED: Final = "reports do not use it"

_ACCOUNTS: Final = (
    "records must have Slurm's account: give the Slurm collector"
    " meta: [{name: account, key: Account, key_type: String}]; the agent counted ReqTRES, records have AllocTRES: see"
    " auditord waldur compare, and --allow-decrease where that is less"
)
_TARGETS: Final = (
    "with target_components the agent rounded to whole numbers, and ignored other components' unit_factor: not so here"
)


@dataclass
class _Import:
    """The result as it grows."""

    sections: dict[str, Any] = field(default_factory=dict[str, Any])  # Any: YAML that goes into ours
    comments: dict[str, str] = field(default_factory=dict[str, str])
    dropped: dict[str, str] = field(default_factory=dict[str, str])

    def put(self, path: str, value: Any, comment: str = "") -> None:  # Any: YAML
        self.sections[path] = value
        if comment and comment not in self.comments.values():
            self.comments[path] = comment

    def drop(self, place: str, given: Document, reasons: Mapping[str, str], kept: Iterable[str], other: str) -> None:
        """Name what is not kept."""
        for name in given:
            if name not in set(kept):
                self.dropped[f"{place}{name}"] = reasons.get(name, other)


def import_config(document: Document) -> ImportedConfig | None:
    """Translate the file and the agent's environment, or None if it is no configuration of the agent."""
    return import_agent(document, os.environ)


def import_agent(document: Document, environment: Mapping[str, str]) -> ImportedConfig | None:
    """Translate the file, or None if it is no configuration of the agent.

    Args:
        document: the file's contents.
        environment: where the agent's variables are looked for.

    Raises:
        ValueError: the agent would refuse a value.
    """
    if not isinstance(document.get("offerings"), list):
        return None
    offerings: list[Any] = document["offerings"]  # Any: an operator's YAML
    if not any(isinstance(each, Mapping) and "waldur_offering_uuid" in each for each in offerings):
        return None
    for number, offering in enumerate(offerings):
        _check_shape(offering, f"offerings[{number}]")
    result = _Import()
    names = _instance_names([str(each.get("name", "")) for each in offerings])
    for name, offering in zip(names, offerings, strict=True):
        _import_offering(result, name, document, offering, environment)
    _import_level(result, document, environment)
    result.drop("", document, _DROPPED, _TOP, "the agent does not know this option and ignored it; a typing error?")
    return ImportedConfig(result.sections, result.comments, result.dropped, origin="the Waldur site agent")


def _check_shape(offering: Any, place: str) -> None:  # Any: an operator's YAML
    """Return if there are mappings where the agent has some.

    Raises:
        ValueError: there is something else, or nothing.
    """
    _check_mapping(offering, place)
    _check_mapping(offering.get("backend_settings") or {}, f"{place}.backend_settings")
    components = offering.get("backend_components")
    _check_mapping(components, f"{place}.backend_components")
    for key, component in components.items():
        _check_mapping(component, f"{place}.backend_components.{key}")


def _check_mapping(given: Any, place: str) -> None:  # Any: an operator's YAML
    if not isinstance(given, Mapping):
        raise ValueError(f"{place}: expected options below it, got {'nothing' if given is None else repr(given)}")  # noqa: TRY004 callers tell of ValueErrors


def _instance_names(names: list[str]) -> list[str]:
    """A name of an instance for each offering, each another."""
    made: list[str] = []
    for name in names:
        words = re.sub("[^a-z0-9]+", "_", name.lower()).strip("_")
        plain = words if words.startswith("waldur") else f"waldur_{words}".rstrip("_")
        numbered = (f"{plain}_{number}" for number in range(2, len(names) + 2))
        made.append(plain if plain not in made else next(each for each in numbered if each not in made))
    return made


def _import_offering(
    result: _Import, name: str, document: Document, offering: Document, environment: Mapping[str, str]
) -> None:
    path = f"plugins.{name}"
    result.put(f"{path}.kind", "waldur")
    accounts = "" if result.comments else f" {_ACCOUNTS}"
    result.comments[path] = f"{offering.get('name', name)}.{accounts}"
    _import_interval(result, path, environment)
    for option in (*_KEPT, "waldur_api_token"):
        if offering.get(option):
            remark = "better as a reference: file:/path, env:NAME or credential:name" if option in _SECRETS else ""
            result.put(f"{path}.{option}", offering[option], remark)
    if offering.get("verify_ssl") is False:
        result.put(f"{path}.verify_ssl", value=False)
    if offering.get("omit_anomalous_usage_components") is True:
        result.put(f"{path}.omit_anomalous_usage_components", value=True)
    for theirs, ours in (
        ("timezone", "timezone"),
        ("global_proxy", "proxy"),
        ("reporting_periods", "reporting_periods"),
    ):
        if document.get(theirs):
            result.put(f"{path}.{ours}", document[theirs])
    _import_backend(result, path, name, offering)
    kept = {*_OFFERING, "backend_components"}
    stomp = {option: _OTHER_MODE for option in offering if option.startswith("stomp_")}
    result.drop(f"offerings.{name}.", offering, {**_OFFERING_DROPPED, **stomp}, kept, _IGNORED)


def _import_interval(result: _Import, path: str, environment: Mapping[str, str]) -> None:
    if PERIOD not in environment:
        return
    minutes = int(environment[PERIOD])
    result.put(f"{path}.interval", f"{minutes}m", f"{PERIOD}; here from start to start")
    if timedelta(minutes=minutes) < INTERVAL:
        result.put(f"{path}.retry_for", f"{minutes * 20}s", "shorter than the interval")


def _import_backend(result: _Import, path: str, name: str, offering: Document) -> None:
    settings: Document = offering.get("backend_settings") or {}
    place = f"offerings.{name}."
    if slurm := {option: str(settings[option]) for option in _SETTINGS if settings.get(option)}:
        result.put(f"{path}.slurm", slurm, "for --source sacct, compare and diagnose alone")
    prefixes = list(dict.fromkeys(str(settings.get(option) or "") for option in _PREFIXES))
    if all(prefixes):
        result.put(f"{path}.account_prefixes", prefixes, _CHOSEN)
    kept = (*_SETTINGS, *_PREFIXES) if all(prefixes) else _SETTINGS
    result.drop(f"{place}backend_settings.", settings, _SETTINGS_DROPPED, kept, _IGNORED)
    if (backend := str(offering.get("reporting_backend", ""))) not in {"", "slurm"}:
        result.dropped[f"{place}reporting_backend"] = f"{backend} reported other figures; compare them"
    components: Mapping[str, Document] = offering["backend_components"]
    targets = any(each.get("target_components") for each in components.values())
    taken = {key: {option: each[option] for option in _COMPONENT if option in each} for key, each in components.items()}
    result.put(f"{path}.backend_components", taken, _TARGETS if targets else "")
    _import_recorded(result, path, taken)
    for key, each in components.items():
        result.drop(f"{place}backend_components.{key}.", each, _COMPONENT_DROPPED, _COMPONENT, _IGNORED)


def _import_recorded(result: _Import, path: str, components: Mapping[str, Document]) -> None:
    """Name a component of records for every resource that collectors have no name for."""
    resources = [name for key, each in components.items() for name in each.get("target_components") or (key,)]
    unknown = [name for name in dict.fromkeys(resources) if name not in RECORDED]
    remarks: list[str] = []
    if others := [name for name in unknown if name != "gpu"]:
        remarks.append(
            f"no collector makes {', '.join(others)} unless it is told to: give it components of these names"
        )
    if "gpu" in unknown:
        remarks.append("the agent reported zeros: Slurm's name of GPUs is gres/gpu")
    recorded = {name: {"component": ["GPU" if name == "gpu" else name]} for name in unknown}
    if recorded:
        result.put(f"{path}.recorded_as", recorded, "; ".join(remarks))


def _import_level(result: _Import, document: Document, environment: Mapping[str, str]) -> None:
    """The file's level, or that of a variable that the agent's guide names and the agent never read."""
    if level := document.get("log_level") or environment.get(LEVEL):
        lower = str(level).lower()
        result.put("logging.level", _LEVELS.get(lower, lower), "" if document.get("log_level") else LEVEL)
