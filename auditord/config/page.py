"""The configuration section of the page."""

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


def _check_url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError(f"'{text}' is neither http://…, https://… nor a path")
    return text


def _check_source(text: str) -> str:
    if not _SOURCE.fullmatch(text):
        raise ValueError(f"'{text}' is neither 'self' nor https://host")
    return text


def _check_root(text: str) -> str:
    if not _ROOT.fullmatch(text):
        raise ValueError(f"'{text}' is not a path such as /accounting: it must begin with a slash and not end with one")
    return text


def _check_logo(path: Path | None) -> Path | None:
    if path is not None and (not path.is_absolute() or path.suffix not in _IMAGES):
        raise ValueError(f"'{path}' is not the absolute path of a .svg, .png, .jpg or .webp file")
    return path


def _check_zone(name: str) -> str:
    zone_named(name)
    return name


class LinkSection(Section):
    """A link at the foot of every page."""

    title: str = Field(min_length=1, description="The link's text.")
    url: Annotated[str, AfterValidator(_check_url)] = Field(description="The link's target.")


class UiSection(Section):
    """The page that the daemon serves to browsers."""

    enabled: bool = Field(default=True, description="Serve the page; false removes all its routes.")
    title: str = Field(default="auditord", min_length=1, description="The name of the site, on every page.")
    logo: Annotated[Path | None, AfterValidator(_check_logo)] = Field(
        default=None, description="An image file beside the title; read at start-up."
    )
    labels: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Further meta keys that the Usage page offers for grouping, such as partition. Roll-ups are kept "
        "for these keys, so that sums by them are as fast as by group. Choose keys with few values, and "
        "the same ones in all daemons of one database.",
    )
    links: tuple[LinkSection, ...] = Field(default=(), description="Links in the footer of every page: help, imprint.")
    frame_ancestors: tuple[Annotated[str, AfterValidator(_check_source)], ...] = Field(
        default=(), description="Web sites that may embed this page in a frame, such as https://portal.example.org."
    )
    timezone: Annotated[str, AfterValidator(_check_zone)] = Field(
        default=UTC_NAME,
        description="The time zone of the page and of the command line's reports on this host, such as Europe/Berlin. "
        "Roll-ups over all users are also kept by days of this zone, so that such sums are fast. Use the "
        "same zone in all daemons of one database.",
    )
    co2_per_kwh: Decimal | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="The grid's CO2 intensity in kg per kWh of measured energy, for the measure co2 of the page and "
        "of reports. Multiply it by the PUE (the building's power divided by the computers' power).",
    )
    root_path: Annotated[str, AfterValidator(_check_root)] = Field(
        default="", description="The path prefix under which a reverse proxy serves the page, such as /accounting."
    )
