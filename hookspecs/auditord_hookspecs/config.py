"""The building blocks of configuration models: strict sections and durations."""

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(value: Any) -> Any:  # Any: whatever stood in the file
    """Read ``30s``, ``5m``, ``1h30m``, ``1d``; ISO 8601 (``PT5M``) is left to pydantic, a bare number is refused."""
    if isinstance(value, bool | int | float):
        raise ValueError(f"a duration needs a unit, such as {value}s or {value}m")  # noqa: TRY004 pydantic wants it
    if isinstance(value, str) and _DURATION.fullmatch(value.strip()):
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value)))
    return value


def format_duration(value: timedelta) -> str:
    """The shortest text that :func:`parse_duration` reads back: ``5m``, ``1d``, ``90s``."""
    seconds = value.total_seconds()
    for unit in ("w", "d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{int(seconds // _UNITS[unit])}{unit}"
    return f"{seconds:g}s"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, when_used="json")]


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class InstanceConfig(Section):
    """What every instance of every kind understands; the host adds ``kind``."""

    enabled: bool = True


class RunConfig(InstanceConfig):
    """An instance that runs by the clock: collectors and plugins derive their models from this.

    ``interval`` and ``schedule`` (a five-field cron line in UTC) exclude each other; with neither, the kind's own
    interval counts. ``jitter`` spreads the starts of many hosts. A run that takes longer than ``timeout`` is cancelled.
    """

    interval: Duration | None = None
    schedule: str | None = None
    jitter: Duration = timedelta(0)
    timeout: Duration | None = None

    @model_validator(mode="after")
    def _one_clock(self) -> "RunConfig":
        if self.interval is not None and self.schedule is not None:
            raise ValueError("interval and schedule exclude each other: keep one")
        return self
