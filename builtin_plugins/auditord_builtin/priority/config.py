"""The options of plugin ``priority``, with AUDITOR's names and defaults if they mean the same, and their import."""

import shlex
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from auditord_hookspecs import Duration, ImportedConfig, PluginConfig
from auditord_hookspecs.config import GroupKeys
from auditord_hookspecs.config_import import OWN_LOG, ConfigImport, Document

Mode: TypeAlias = Literal["ScaledBySum", "FullSpread"]
Counted: TypeAlias = Literal["stop", "start", "overlap"]
Metric: TypeAlias = Literal["ResourceUsage", "Priority"]

SCONTROL: Final = "/usr/bin/scontrol update PartitionName={1} PriorityJobFactor={priority}"


class PriorityConfig(PluginConfig):
    """Computes priorities from what groups provided or used, and sets them with commands."""

    components: Mapping[str, str | None] = Field(
        default={},
        description="The components to count, each weighted with the named score or (null) unweighted. A component "
        "that lacks its score counts with 1, with a warning. Without components, only time counts.",
    )
    component_combination: Literal["sum", "product"] = Field(
        default="sum",
        description="sum: add up amount x score x time of all components; product: multiply the amounts and scores of "
        "a record's components with each other, as AUDITOR's plugin does.",
    )
    group_mapping: Mapping[str, tuple[str, ...]] = Field(
        min_length=1, description="The groups that get a priority, and the values of {1}, {2}, ... in their commands."
    )
    group_keys: GroupKeys = Field(
        default=(), description="Other labels with the group than that of labels.group, and older names of it."
    )
    commands: tuple[str, ...] = Field(
        default=(SCONTROL,),
        min_length=1,
        description="The commands that set a group's priority: a program and its arguments, quoted as for a shell, "
        "but run without one. Placeholders: {priority}, {resource} (or {resources}), {group}, {1}, {2}, "
        "...",
    )
    min_priority: int = Field(default=0, ge=0, le=2**63 - 1, description="The lowest priority.")
    max_priority: int = Field(default=1024, ge=0, le=2**63 - 1, description="The highest priority.")
    computation_mode: Mode = Field(
        default="ScaledBySum",
        description="ScaledBySum: in proportion to a group's share; FullSpread: the smallest usage gets min_priority, "
        "the largest max_priority.",
    )
    duration: Duration | None = Field(
        default=None, gt=timedelta(0), description="The period to count, back from now; default: all records."
    )
    window: Counted = Field(
        default="stop",
        description="Which records count within duration: those that stopped in it; those that started in it, as in "
        "AUDITOR; or the part of each record that lies in it, including running jobs.",
    )
    stale_after: Duration | None = Field(
        default=None,
        gt=timedelta(0),
        description="If no record of any group stopped within this time, a collector is probably behind, and "
        "priorities stay unchanged.",
    )
    smoothing: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="The weight of the previous priority, which dampens jumps; 0: none."
    )
    metrics: tuple[Metric, ...] = Field(
        default=("ResourceUsage", "Priority"), description="Gauges at /metrics, under auditord's names and AUDITOR's."
    )

    @field_validator("commands")
    @classmethod
    def _splits(cls, commands: tuple[str, ...]) -> tuple[str, ...]:
        for command in commands:
            try:
                words = shlex.split(command)
            except ValueError as error:
                raise ValueError(f"{command!r} cannot be split into words: {error}") from error
            if not words or not words[0]:
                raise ValueError("a command needs a program")
        return commands

    @model_validator(mode="after")
    def _in_order(self) -> "PriorityConfig":
        if self.min_priority > self.max_priority:
            raise ValueError("min_priority is above max_priority: the smallest usage would get the highest priority")
        return self


_KEPT: Final = ("components", "group_mapping", "commands", "min_priority", "max_priority", "computation_mode")
_TAKEN: Final = {*_KEPT, "auditor", "timeout", "duration", "frequency", "prometheus", "tls_config"}
_COMMAND: Final = "AUDITOR's option is commands; it ignored this one and ran its default, as auditord does"
_HERE: Final = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})
_TLS: Final = {"ca_cert_path": "ca", "client_cert_path": "certificate", "client_key_path": "key"}


def import_config(document: Document) -> ImportedConfig | None:
    """Translate a file of AUDITOR's priority plugin, or return None for any other file."""
    if "group_mapping" not in document or "kind" in document:
        return None
    result = ConfigImport(document, "plugins.priority")
    result.put("kind", "priority")
    result.put("interval", f"{int(document.get('frequency', 3600))}s", "frequency")
    auditor, tls = result.section("auditor"), result.section("tls_config")
    host, port = str(auditor.get("addr", "127.0.0.1")), auditor.get("port", 8000)
    if host in _HERE:
        result.dropped["auditor"] = "the plugin uses this daemon's own records; for another server set source: {url: …}"
    else:
        secure = tls.get("use_tls") in {True, "true"}
        url = f"{'https' if secure else 'http'}://{host}:{port}"
        result.put("source.url", url, "remove source once the records are here")
        result.put("source.timeout", f"{int(result.document.get('timeout', 30))}s")
        for theirs, ours in _TLS.items():
            if secure and theirs in tls:
                result.put(f"source.tls.{ours}", tls[theirs])
    for name in _KEPT:
        if name in document:
            value = document[name]
            if name == "group_mapping":  # AUDITOR converts the parameters of groups to strings, too
                value = {
                    str(group): [str(parameter) for parameter in parameters] for group, parameters in value.items()
                }
            result.put(name, value, _remark(document, name))
    result.put("group_keys", ["group_id"], "AUDITOR reads only this key; by default that of labels.group")
    if document.get("duration") is not None:
        result.put("duration", f"{int(document['duration'])}s")
        remark = "AUDITOR counts jobs that started within duration; its manual describes jobs that stopped (stop)"
        result.put("window", "start", remark)
    if len(result.section("components")) > 1:
        remark = "AUDITOR multiplies the components with each other; its manual describes a sum"
        result.put("component_combination", "product", remark)
    _import_metrics(result)
    return result.finish(_TAKEN, {"logging": OWN_LOG} | ({} if "commands" in document else {"command": _COMMAND}))


def _remark(document: Document, name: str) -> str:
    if name == "components" and not document[name]:
        return "only time counts, of every record; AUDITOR counted only records without components"
    if name == "commands" and any("{resources}" in str(command) for command in document[name]):
        return "{resources} is replaced like {resource}; AUDITOR left it unchanged"
    if name == "min_priority" and document[name] > document.get("max_priority", 1024):
        return "above max_priority, which auditord refuses; AUDITOR reversed the order"
    return ""


def _import_metrics(result: ConfigImport) -> None:
    prometheus = result.document.get("prometheus")
    if prometheus is None or prometheus.get("enable", True) in {False, "false"}:
        result.put("metrics", [], "AUDITOR had no gauges; remove this line to get them under both names")
        return
    result.put("metrics", list(prometheus["metrics"]), "at the daemon's own /metrics, under AUDITOR's names as well")
    reason = "the gauges are at /metrics of the daemon (api.listen)"
    result.drop(prometheus, {"enable", "metrics"}, dict.fromkeys(("addr", "port"), reason), place="prometheus.")
