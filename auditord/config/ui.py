"""The page that the daemon serves to browsers."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from auditord_hookspecs import Section
from auditord_hookspecs.zones import UTC_NAME, zone_named

_URL: Final = re.compile(r"https?://[^\s]+|/[^\s]*")
_SOURCE: Final = re.compile(r"'self'|https?://[A-Za-z0-9.*:\[\]-]+")
_ROOT: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_IMAGES: Final = frozenset({".svg", ".png", ".jpg", ".webp"})


def _checked_url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError(f"'{text}' is neither http://…, https://… nor a path")
    return text


def _checked_source(text: str) -> str:
    if not _SOURCE.fullmatch(text):
        raise ValueError(f"'{text}' is neither 'self' nor https://host")
    return text


def _checked_root(text: str) -> str:
    if not _ROOT.fullmatch(text):
        raise ValueError(f"'{text}' is no path such as /accounting: it begins with a slash and does not end with one")
    return text


def _checked_logo(path: Path | None) -> Path | None:
    if path is not None and (not path.is_absolute() or path.suffix not in _IMAGES):
        raise ValueError(f"'{path}' is not the absolute path of a .svg, .png, .jpg or .webp file")
    return path


def _checked_zone(name: str) -> str:
    zone_named(name)
    return name


class LinkSection(Section):
    """A link at the foot of every page."""

    title: str = Field(min_length=1, description="Its text.")
    url: Annotated[str, AfterValidator(_checked_url)] = Field(description="Where it leads.")


class UiSection(Section):
    """The page that the daemon serves to browsers."""

    enabled: bool = Field(default=True, description="Whether there is a page; without it, none of its routes is there.")
    title: str = Field(default="auditord", min_length=1, description="The name of the site, on every page.")
    logo: Annotated[Path | None, AfterValidator(_checked_logo)] = Field(
        default=None, description="A picture beside the title; read at the start."
    )
    labels: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Other meta keys that Usage offers to group by, such as partition. Roll-ups are kept by each of "
        "them, so that sums by it are as fast as those by group: name keys with few values. Daemons that share a "
        "database name the same ones.",
    )
    links: tuple[LinkSection, ...] = Field(default=(), description="At the foot of every page: help, imprint.")
    frame_ancestors: tuple[Annotated[str, AfterValidator(_checked_source)], ...] = Field(
        default=(), description="Servers whose pages may show this one in a frame, such as https://portal.example.org."
    )
    timezone: Annotated[str, AfterValidator(_checked_zone)] = Field(
        default=UTC_NAME,
        description="The time zone of the page, and of reports of the command line on this host, such as "
        "Europe/Berlin. Roll-ups of all users together are kept by its days as well, so that sums by these are "
        "fast. "
        "Daemons that share a database name the same one.",
    )
    co2_per_kwh: Decimal | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="The CO2 that the grid emits for a kWh of measured energy, in kg, for the measure co2 of the "
        "page and of reports; times what the building draws per what computers draw.",
    )
    root_path: Annotated[str, AfterValidator(_checked_root)] = Field(
        default="", description="The path below which a proxy shows the page, such as /accounting."
    )
