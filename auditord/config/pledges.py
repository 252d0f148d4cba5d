"""Pledges: capacity that sites promised, for reports and the page."""

from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, model_validator

from auditord_hookspecs import Section

if TYPE_CHECKING:
    from auditord.reporting.pledges import Pledge


def _positive(amount: Decimal) -> Decimal:
    if not amount.is_finite() or amount <= 0:
        raise ValueError("a pledge is larger than 0")
    return amount


class PledgeSection(Section):
    """A capacity that is promised to a site or a group for a time."""

    site: str | None = Field(default=None, min_length=1, description="Whose; without it, of all sites together.")
    group: str | None = Field(default=None, min_length=1, description="For whom; without it, for all groups together.")
    score: str | None = Field(
        default=None, min_length=1, description="The benchmark in whose unit the amount is; without it, cores."
    )
    amount: Annotated[Decimal, AfterValidator(_positive)] = Field(
        description="The power that is there all the time: cores, or cores times score (such as HEPscore23)."
    )
    first: date = Field(alias="from", description="The first day.")
    end: date = Field(alias="to", description="The day behind the last one.")

    @model_validator(mode="after")
    def _in_order(self) -> "PledgeSection":
        if self.end <= self.first:
            raise ValueError("'to' is not behind 'from'")
        return self

    def pledge(self) -> "Pledge":
        """The pledge as reports work with it."""
        from auditord.reporting.pledges import Pledge  # noqa: PLC0415 with reports

        return Pledge(self.site, self.group, self.score, Fraction(self.amount), self.first, self.end)
