"""The section about the lake says what belongs together."""

import pytest
from pydantic import ValidationError

from auditord.config.lake import LakeSection

TRINO = {"engine": "trino", "trino": "https://auditord@trino.example.org:8443/accounting"}


def test_trino_reads_a_catalog_that_it_can_reach_and_keeps_secrets() -> None:
    catalog = {"catalog": "postgresql://lake@host/lake"}
    assert LakeSection.model_validate({**TRINO, **catalog, "trino_password": "x"}).engine == "trino"
    with pytest.raises(ValidationError, match="Trino cannot read a catalog in SQLite"):
        LakeSection.model_validate(TRINO)
    with pytest.raises(ValidationError, match=r"lake\.engine: trino needs lake\.trino"):
        LakeSection.model_validate({**catalog, "engine": "trino"})
    with pytest.raises(ValidationError, match="over https only"):
        LakeSection.model_validate({**TRINO, **catalog, "trino": "http://me@host/hive", "trino_token": "x"})
    for url in ("trino.example.org", "https://trino.example.org/hive", "https://me@host", "https://me:secret@host/x"):
        with pytest.raises(ValidationError, match="URL of a Trino catalog"):
            LakeSection.model_validate({**TRINO, **catalog, "trino": url})


def test_spark_and_its_server_belong_together() -> None:
    assert LakeSection.model_validate({"engine": "spark", "spark": "sc://host:15002"}).spark_token is None
    for given in ({"engine": "spark"}, {"spark": "sc://host"}):
        with pytest.raises(ValidationError, match=r"lake\.engine: spark needs lake\.spark"):
            LakeSection.model_validate(given)


def test_a_master_is_no_server() -> None:
    with pytest.raises(ValidationError, match="sc://host:15002"):
        LakeSection.model_validate({"engine": "spark", "spark": "spark://host:7077"})
