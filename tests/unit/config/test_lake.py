"""The section about the lake says what belongs together."""

import pytest
from pydantic import ValidationError

from auditord.config.lake import LakeSection


def test_spark_and_its_server_belong_together() -> None:
    assert LakeSection.model_validate({"engine": "spark", "spark": "sc://host:15002"}).spark_token is None
    for given in ({"engine": "spark"}, {"spark": "sc://host"}):
        with pytest.raises(ValidationError, match=r"lake\.engine: spark needs lake\.spark"):
            LakeSection.model_validate(given)


def test_a_master_is_no_server() -> None:
    with pytest.raises(ValidationError, match="sc://host:15002"):
        LakeSection.model_validate({"engine": "spark", "spark": "spark://host:7077"})
