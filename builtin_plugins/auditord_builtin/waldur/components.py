"""The components of a Waldur offering: the resources that each is made of, and its unit."""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from auditord_hookspecs import Section

CENT: Final = Decimal("0.01")
"""Waldur keeps amounts with two decimals and refuses more."""


def _read_ratio(value: Any) -> Any:  # Any: whatever stood in the file
    try:
        # A float is taken as it is written: 0.1 is a tenth, and not the binary number next to it.
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{value!r} is no number such as 60000, 0.5 or 1/1048576") from error


Ratio = Annotated[
    Fraction,
    BeforeValidator(_read_ratio),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": ["number", "string"], "examples": [60000, 0.5, "1/1048576"]}),
]
"""A number that is kept exactly: ``60000``, ``0.5``, ``1/1048576``."""


class TargetResource(Section):
    """The share of one resource in a component that is made of several."""

    factor: Ratio = Field(gt=0, description="So many resource-minutes are one unit of the component.")


class BackendComponent(Section):
    """A component of the offering; its key is its type in Waldur and, without targets, the resource that it counts."""

    measured_unit: str = Field(default="", description="Waldur's name of the unit, for texts and diagnose.")
    label: str = Field(default="", description="What people call it, for texts.")
    unit_factor: Ratio = Field(
        default=Fraction(1), gt=0, description="So many resource-minutes are one unit: 60000 makes k-hours of minutes."
    )
    target_components: Mapping[str, TargetResource] = Field(
        default={}, description="Several resources that it is the sum of, each with a factor of its own."
    )

    def factors(self, name: str) -> Mapping[str, Fraction]:
        """Resource-minutes that are one unit, by resource.

        Args:
            name: the component's own name, which is its resource unless it has targets.
        """
        if not self.target_components:
            return {name: self.unit_factor}
        return {resource: target.factor for resource, target in self.target_components.items()}


class RecordedResource(Section):
    """The place of a resource in records."""

    component: tuple[str, ...] = Field(min_length=1, description="Components of records; several are added up.")
    scale: Ratio = Field(
        default=Fraction(1), gt=0, description="Amount times scale is the resource's unit; that of mem is MiB."
    )


RECORDED: Final[Mapping[str, RecordedResource]] = {
    "cpu": RecordedResource(component=("Cores",)),
    "mem": RecordedResource(component=("Memory",)),
    "gres/gpu": RecordedResource(component=("GPU",)),
}
"""The components that the collectors make."""


def rounded(amount: Fraction) -> Decimal:
    """With the two decimals that Waldur keeps, half up; the one place where an amount is rounded."""
    cents, rest = divmod(amount * 100, 1)
    return (int(cents) + (rest >= Fraction(1, 2))) * CENT
