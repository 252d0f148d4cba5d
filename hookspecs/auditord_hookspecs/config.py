"""Base classes and types for configuration models: strict sections, and durations with units such as ``5m``."""

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from auditord_hookspecs.schedule import Schedule

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(value: Any) -> Any:  # Any: a value from the file
    """Parse ``30s``, ``5m``, ``1h30m``, ``1d``, which pydantic does not read. ISO 8601 (``PT5M``) is left to pydantic.

    Bare numbers and ``02:00:00``, which pydantic would read, are refused.
    """
    if isinstance(value, timedelta):
        return value
    text = str(value).strip()
    if _DURATION.fullmatch(text):
        return timedelta(milliseconds=sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)))
    if isinstance(value, bool) or not text.startswith(("P", "-P")):
        if text.startswith("-") and _DURATION.fullmatch(text[1:]):
            raise ValueError(f"'{value}' must not be negative")
        number = text if text.replace(".", "", 1).isdigit() else "30"
        raise ValueError(
            f"'{value}' is not a duration: write a number with a unit, such as {number}s, {number}m or 1h30m"
        )
    return text


def format_duration(value: timedelta) -> str:
    """Return the shortest string that a :data:`Duration` reads back: ``5m``, ``1d``, ``90s``.

    A duration that is negative or not a multiple of 1 ms is written as ISO 8601: ``-PT300.000000S``.
    """
    micros = value // timedelta(microseconds=1)
    for unit, millis in reversed(_UNITS.items()):
        if micros > 0 and micros % (millis * 1_000) == 0:
            return f"{micros // (millis * 1_000)}{unit}"
    if not micros:
        return "0s"
    seconds, fraction = divmod(abs(micros), 1_000_000)
    return f"{'-' if micros < 0 else ''}PT{seconds}.{fraction:06}S"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, when_used="json"),
    WithJsonSchema({"type": "string", "examples": ["30s", "5m", "1h30m", "1d", "PT5M"]}),
]
"""A length of time with a unit: ``30s``, ``5m``, ``1h30m``, ``1d``, or ISO 8601. A bare number is refused."""


def _refuse_negative(period: timedelta) -> timedelta:
    if period < timedelta(0):
        raise ValueError("must not be negative")
    return period


NonNegativeDuration = Annotated[Duration, AfterValidator(_refuse_negative)]
"""A :data:`Duration` of ``0s`` or longer."""


def _refuse_relative(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"'{path}' is relative: write an absolute path, as the daemon may start anywhere")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_refuse_relative)]
"""A path that does not depend on where the daemon is started."""


def _wrap_string(value: Any) -> Any:  # Any: a value from the file
    return (value,) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_wrap_string, json_schema_input_type=str | tuple[str, ...])]
"""One string or a list of strings, such as a program with its first arguments."""


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
VariableValue = Annotated[str, Field(pattern=r"^[^\x00]*$")]


def _resolve_secret(value: Any, info: ValidationInfo) -> Any:  # Any: a value from the file
    context: Any = info.context  # Any: the host passes {"resolve_secret": a function}; a test may pass anything
    if not context or "resolve_secret" not in context or not isinstance(value, str):
        return value
    resolved = context["resolve_secret"](value)
    return value if resolved is None else resolved


Secret = Annotated[SecretStr, BeforeValidator(_resolve_secret)]
"""An option that holds a secret. The file has a reference (``file:/path``, ``env:NAME``, ``credential:name``) or, not
recommended, the secret itself. The host resolves references when it loads the configuration
(``auditord_resolve_secret``). A model that is built without the host, as in a test, keeps the string unchanged. The
secret is never printed."""


OLDER_KEYS = {"site_id": "site", "group_id": "group", "user_id": "user"}
"""The labels that collectors write by default, with the older names in records of AUDITOR sites."""


def _keys_of(name: str, *always: str) -> BeforeValidator:
    """Return a validator that replaces an empty list by the label in the host's section ``labels``."""
    by_default = f"{name}_id"

    def fill(value: Any, info: ValidationInfo) -> Any:  # Any: a value from the file
        if value not in ((), []):
            return _wrap_string(value)
        context: Any = info.context  # Any: the host passes {"labels": the section}; a test may pass anything
        labels: Any = context.get("labels") if context else None
        key: Any = cast("Mapping[str, Any]", labels).get(name) if isinstance(labels, Mapping) else None
        key = key if isinstance(key, str) else by_default  # the host refuses any other value
        older = (OLDER_KEYS[key],) if key in OLDER_KEYS else ()
        return tuple(dict.fromkeys((key, *older, *always)))

    return BeforeValidator(fill, json_schema_input_type=str | tuple[str, ...])


SiteKeys = Annotated[tuple[str, ...], _keys_of("site"), Field(validate_default=True)]
"""The labels with the site; the first one that a record has counts: ``site_keys: SiteKeys = ()``.

By default this is the label in the section ``labels``, which the whole host uses, and after ``site_id`` the older name
``site``. So an option of a plugin differs from the page only if the operator sets it.
"""

GroupKeys = Annotated[tuple[str, ...], _keys_of("group"), Field(validate_default=True)]
"""The labels with the group, as :data:`SiteKeys`."""

UserKeys = Annotated[tuple[str, ...], _keys_of("user"), Field(validate_default=True)]
"""The labels with the user, as :data:`SiteKeys`."""

PersonalKeys = Annotated[tuple[str, ...], _keys_of("user", "user_id", "user"), Field(validate_default=True)]
"""All labels that name a user: by default those of :data:`UserKeys`, ``user_id`` and ``user``."""


class Section(BaseModel):
    """The base class of configuration sections: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,
        defer_build=True,  # a command uses few sections
    )


class InstanceConfig(Section):
    """The options that the instances of all kinds share. The host adds ``kind``."""

    enabled: bool = Field(default=True, description="False keeps the section but never runs it.")


class RunConfig(InstanceConfig):
    """The options of scheduled instances: collectors and plugins derive their models from this.

    ``interval`` and ``schedule`` (a five-field cron line in UTC, :mod:`auditord_hookspecs.schedule`) exclude each
    other; with neither, the kind's own interval is used.
    """

    interval: Duration | None = Field(default=None, description="Time between runs.")
    schedule: Schedule | None = Field(default=None, description="Start times: five cron fields in UTC.")
    jitter: NonNegativeDuration = Field(
        default=timedelta(0),
        description="A random delay of up to this before each run, which spreads the load of many hosts.",
    )
    timeout: Duration | None = Field(default=None, description="A longer run is cancelled.")
    environment: Mapping[VariableName, VariableValue] = Field(
        default_factory=dict[str, str],
        description="Environment variables for the programs that the instance runs, such as {CONDOR_CONFIG: "
        "/etc/condor-ce/condor_config}.",
    )

    @field_validator("interval", "timeout")
    @classmethod
    def _positive(cls, duration: timedelta | None) -> timedelta | None:
        if duration is not None and duration <= timedelta(0):
            raise ValueError("must be longer than 0s")
        return duration

    @model_validator(mode="after")
    def _one_clock(self) -> "RunConfig":
        if self.interval is not None and self.schedule is not None:
            raise ValueError("interval and schedule exclude each other: keep one")
        return self
