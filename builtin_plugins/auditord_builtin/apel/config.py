"""The options of the APEL plugin. One model covers the options of AUDITOR 0.11 and of its versions up to 0.7."""

import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import quote

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, field_validator, model_validator

from auditord_hookspecs import PluginConfig, Secret, Section
from auditord_hookspecs.config import SiteKeys

NOTHING: Final = "None"
"""APEL's value for an unknown text."""

Name: TypeAlias = Annotated[str, Field(min_length=1)]


def _as_tuple(value: Any) -> Any:  # Any: a value from the file
    return (value,) if isinstance(value, str) else value


Names = Annotated[
    tuple[Name, ...],
    Field(min_length=1),
    BeforeValidator(_as_tuple, json_schema_input_type=str | tuple[str, ...]),
]
"""One or several meta keys. The first one that a record has is used."""


class ComponentField(Section):
    """The amount of a component, summed up if a record has it several times."""

    type: Literal["ComponentField"] = "ComponentField"
    name: Name
    divide_by: int = Field(default=1, gt=0, description="A divisor for amounts: 1000 for milliseconds.")


class Function(Section):
    """``vo_mapping``: the VO of the first prefix, in the given order, that the value starts with.

    ``fqan_vo``, ``fqan_group`` and ``fqan_role``: the parts of an FQAN, by the rules of APEL's own parser.
    """

    name: Literal["vo_mapping", "fqan_vo", "fqan_group", "fqan_role"]
    parameters: Mapping[str, str] | None = None

    @model_validator(mode="after")
    def _parameters_of_mapping(self) -> "Function":
        if (self.name == "vo_mapping") is (self.parameters is None):
            raise ValueError("vo_mapping needs parameters, and no other function accepts any")
        return self

    def __call__(self, text: str) -> str:
        """Return the VO, group or role, or the text ``None``."""
        if self.parameters is not None:
            return next((vo for prefix, vo in self.parameters.items() if text.startswith(prefix)), NOTHING)
        return _parts_of_fqan(text)[self.name] or NOTHING


def _parts_of_fqan(text: str) -> Mapping[str, str]:
    """Split the first of several FQANs. A text that does not begin with a slash is a VO.

    The rules are those of parse_fqan() in APEL's parsers: everything before the role is the group, and the role's case
    does not matter.
    """
    first = text.partition(";")[0]
    if not first.startswith("/"):
        return {"fqan_vo": first, "fqan_group": "", "fqan_role": ""}
    pieces = [piece for piece in first.split("/") if piece]
    place = next((at for at, piece in enumerate(pieces) if piece.lower().startswith("role=")), len(pieces))
    group = "".join([f"/{piece}" for piece in pieces[:place]])
    return {"fqan_vo": first.split("/")[1], "fqan_group": group, "fqan_role": "".join(pieces[place : place + 1])}


class MetaField(Section):
    """The first value of a meta key, or its part that matches ``regex``, or the result of ``function``.

    A missing value or match becomes the text ``None``.
    """

    type: Literal["MetaField"] = "MetaField"
    name: Names
    regex: re.Pattern[str] | None = None
    function: Function | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "MetaField":
        if self.regex is not None and self.function is not None:
            raise ValueError("regex and function cannot be combined: keep one")
        return self

    def text(self, value: str | None) -> str:
        """Return the field's text for a meta key's first value."""
        if value is None:
            return NOTHING
        if self.function is not None:
            return self.function(value)
        found = None if self.regex is None else self.regex.search(value)
        return value if self.regex is None else NOTHING if found is None else found[0]


class ConstantField(Section):
    """The same value for every record."""

    type: Literal["ConstantField"] = "ConstantField"
    value: str | int | Decimal


class ScoreField(Section):
    """The value of a score of the first component of this name."""

    type: Literal["ScoreField"] = "ScoreField"
    name: Name
    component_name: Name


class RecordField(Section):
    """A property that every record has. For a time, ``modify`` chooses a part."""

    type: Literal["RecordField"] = "RecordField"
    name: Literal["record_id", "runtime", "start_time", "stop_time"]
    modify: Literal["year", "month", "day", "hour", "minute", "second"] | None = None

    @model_validator(mode="after")
    def _a_time(self) -> "RecordField":
        if self.modify is not None and self.name not in {"start_time", "stop_time"}:
            raise ValueError(f"{self.name} has no {self.modify}: modify is only for start_time and stop_time")
        return self


class NormalisedField(Section):
    """``base_value`` times a benchmark.

    Without ``score``, the first of ``benchmarks`` that the record has. Without ``base_value``, the duration to
    normalise: ``CpuDuration`` for ``NormalisedCpuDuration``, else the runtime.
    """

    type: Literal["NormalisedField"] = "NormalisedField"
    score: ScoreField | None = None
    base_value: Annotated[ComponentField | RecordField, Field(discriminator="type")] | None = None

    @model_validator(mode="after")
    def _a_number(self) -> "NormalisedField":
        if isinstance(self.base_value, RecordField) and self.base_value.name != "runtime":
            raise ValueError(f"base_value: {self.base_value.name} is not a duration; of a record, only runtime is")
        return self


class NormalisedWallDurationField(Section):
    """The runtime times a benchmark, as AUDITOR's plugin wrote it until version 0.7."""

    type: Literal["NormalisedWallDurationField"] = "NormalisedWallDurationField"
    score: ScoreField | None = None


KeyField: TypeAlias = Annotated[ComponentField | MetaField | ConstantField | ScoreField, Field(discriminator="type")]
"""Fields by which a summary can be grouped."""

AmountField: TypeAlias = Annotated[ComponentField | ConstantField | RecordField, Field(discriminator="type")]
"""Fields that can be summed up."""

NormalisedAmountField: TypeAlias = Annotated[NormalisedField | NormalisedWallDurationField, Field(discriminator="type")]

JobField: TypeAlias = Annotated[
    ComponentField | MetaField | ConstantField | ScoreField | RecordField, Field(discriminator="type")
]
"""Fields of individual jobs."""


BENCHMARKS: Final[Mapping[str, str]] = {"hepscore23": "HEPscore23", "hepspec": "hepspec", "si2k": "si2k"}
"""APEL's benchmarks by lower-case name, in AUDITOR's spelling."""


class MessageType(Enum):
    """The kind of messages to send."""

    SUMMARIES = "summaries"
    INDIVIDUAL_JOBS = "individual_jobs"


class SummaryLayout(Enum):
    """The message formats of summaries, named after their headers."""

    NORMALISED_4 = "normalised-v0.4"
    NORMALISED_3 = "normalised-v0.3"
    PLAIN_4 = "v0.4"
    PLAIN_2 = "v0.2"

    @property
    def normalised(self) -> bool:
        """True if durations are multiplied by the benchmark here, not by APEL."""
        return self in {SummaryLayout.NORMALISED_3, SummaryLayout.NORMALISED_4}


class JobLayout(Enum):
    """The message formats of individual jobs."""

    V4 = "v0.4"
    V3 = "v0.3"


def _spelt(name: object) -> object:
    return BENCHMARKS.get(name.lower(), name) if isinstance(name, str) else name


BenchmarkType: TypeAlias = Annotated[Literal["HEPscore23", "hepspec", "si2k"], BeforeValidator(_spelt)]


class Benchmark(Section):
    """A benchmark of APEL, and the score in records that holds its value."""

    type: BenchmarkType
    score: Name = Field(description="The name of the score.")
    component: Name = Field(default="Cores", description="The component with the score; the score is per core.")


class SiteConfig(Section):
    """The sites that are reported."""

    sites_to_report: Mapping[Name, Names] = Field(
        min_length=1, description="For each site name in GOCDB, the site ids in records."
    )
    site_meta_field: SiteKeys = Field(
        default=(),
        description="Other labels with the site id than that of labels.site; the first one that a record has is used.",
    )
    publish_since: AwareDatetime | None = Field(
        default=None, description="Jobs that stopped earlier are never published. Required for the first run."
    )
    benchmark_type: BenchmarkType = Field(
        default="HEPscore23",
        description="The benchmark of the score that summary_fields names; if it names none, see benchmarks.",
    )
    ce: Name | None = Field(
        default="UNKNOWN",
        max_length=40,
        description="The type of compute element, ARC for example: InfrastructureDescription is "
        "AUDITORD-CE-BATCHSYSTEM unless a field sets it. null leaves it out, for an APEL server before 2.5.0.",
    )
    batch_system: Name | None = Field(
        default=None, max_length=40, description="The batch system; default: the value in records."
    )
    batch_system_meta_field: Names = Field(
        default=("collector_type",),
        description="Meta keys with the batch system; the first one that a record has is used.",
    )
    zero_length_jobs: bool = Field(
        default=True,
        description="Report jobs that ran for less than a second; AUDITOR's plugin leaves them out.",
    )

    @field_validator("sites_to_report")
    @classmethod
    def _one_site(cls, sites: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        counted = Counter(site_id for ids in sites.values() for site_id in ids)
        if twice := sorted(site_id for site_id, number in counted.items() if number > 1):
            raise ValueError(f"{', '.join(twice)}: listed twice; its jobs would be reported twice")
        if len({site.casefold() for site in sites}) < len(sites):
            raise ValueError("two names differ only in case; APEL treats them as one site")
        return sites


class MessagingConfig(Section):
    """The broker, and the certificate that signs messages and identifies us."""

    host: Name = Field(default="msg.argo.grnet.gr", description="The message broker's host.")
    port: int = Field(
        default=8443, ge=1, le=65_535, description="The port where the broker exchanges certificates for tokens."
    )
    auth_url: str | None = Field(default=None, description="The full URL for tokens, instead of host and port.")
    ams_url: str | None = Field(default=None, description="The full URL for messages, instead of host.")
    project: Name = "accounting"
    topic: Name = "gLite-APEL"
    client_cert: Path = Field(
        description="Our certificate (PEM); its subject is the Host DN of the site's gLite-APEL service in GOCDB."
    )
    client_key: Path = Field(description="The certificate's key (PEM), not encrypted.")
    ca_path: Path | None = Field(default=None, description="A file or folder (PEM) with the broker's CA.")
    verify_ca: bool = Field(default=True, description="Verify the broker's certificate; false for tests only.")
    token: Secret | None = Field(
        default=None, description="An existing token, instead of one requested with the certificate."
    )
    max_message_size: int = Field(
        default=900_000,
        ge=20_000,
        description="The largest message in bytes, signed and encoded; the broker accepts 1 MB.",
    )

    @property
    def token_url(self) -> str:
        """The URL at which AMS exchanges certificates for tokens."""
        return self.auth_url or f"https://{self.host}:{self.port}/v1/service-types/ams/hosts/{self.host}:authx509"

    def publish_url(self, topic: str | None = None) -> str:
        """Return the URL for publishing messages to a topic, by default the configured one."""
        if self.ams_url is None:
            topics = f"https://{self.host}:443/v1/projects/{quote(self.project, safe='')}/topics"
        elif topic is None:
            return self.ams_url.removesuffix("?key=")
        else:
            topics = f"{self.ams_url.rpartition('/topics/')[0]}/topics"
        return f"{topics}/{quote(topic or self.topic, safe='')}:publish"


def _duration(field: AmountField) -> AmountField:
    """Raise ValueError unless the field gives a number of seconds."""
    if isinstance(field, RecordField) and field.name != "runtime":
        raise ValueError(f"{field.name} is not a duration; of a record, only runtime is")
    if isinstance(field, ConstantField) and (isinstance(field.value, str) or field.value < Decimal()):
        raise ValueError("a duration must be a number of at least 0")
    return field


DurationField: TypeAlias = Annotated[AmountField, AfterValidator(_duration)]


class MandatorySummaryFields(Section):
    """Fields of every summary, besides those that follow from the records."""

    VO: KeyField
    SubmitHost: KeyField
    Processors: KeyField = ComponentField(name="Cores")
    CpuDuration: DurationField = Field(
        default=ComponentField(name="TotalCPU"), description="Seconds of user and system time on all cores."
    )
    NormalisedCpuDuration: NormalisedAmountField = NormalisedField()
    NormalisedWallDuration: NormalisedAmountField = NormalisedField()


class OptionalSummaryFields(Section):
    """Optional fields of a summary. All except InfrastructureDescription are part of its key."""

    GlobalUserName: KeyField | None = None
    VOGroup: KeyField | None = None
    VORole: KeyField | None = None
    Infrastructure: KeyField | None = Field(default=None, description="grid or local.")
    InfrastructureDescription: ConstantField | None = Field(
        default=None, description="Replaces the value from site.ce."
    )
    NodeCount: KeyField = ConstantField(value=1)


class SummaryFields(Section):
    """The fields of summaries."""

    mandatory: MandatorySummaryFields
    optional: OptionalSummaryFields = OptionalSummaryFields()


class MandatoryJobFields(Section):
    """Fields of every job, besides those that follow from its record."""

    LocalJobId: JobField = RecordField(name="record_id")
    CpuDuration: DurationField = ComponentField(name="TotalCPU")
    Processors: JobField = ComponentField(name="Cores")
    NodeCount: JobField = ConstantField(value=1)


class OptionalJobFields(Section):
    """Optional fields of a job. ServiceLevel and ServiceLevelType come from ``benchmarks`` unless given here."""

    SubmitHost: JobField | None = None
    MachineName: JobField | None = None
    Queue: JobField | None = None
    LocalUserId: JobField | None = None
    GlobalUserName: JobField | None = None
    FQAN: JobField | None = Field(default=None, description="APEL derives VO, VOGroup and VORole from it.")
    VO: JobField | None = None
    VOGroup: JobField | None = None
    VORole: JobField | None = None
    InfrastructureDescription: JobField | None = Field(default=None, description="Replaces the value from site.ce.")
    InfrastructureType: JobField | None = None
    MemoryReal: JobField | None = Field(default=None, description="kB.")
    MemoryVirtual: JobField | None = Field(default=None, description="kB.")
    ServiceLevelType: JobField | None = None
    ServiceLevel: JobField | None = None


class JobFields(Section):
    """The fields of individual jobs."""

    mandatory: MandatoryJobFields = MandatoryJobFields()
    optional: OptionalJobFields = OptionalJobFields()


class AcceleratorConfig(Section):
    """A message about GPUs in addition to summaries, in EGI's draft 0.1. APEL has no agreed message for batch jobs."""

    component: Name = Field(default="GPU", description="The component with the number of accelerators.")
    type: Literal["GPU", "FPGA", "Other"] = "GPU"
    model: KeyField | None = Field(default=None, description="The accelerators' model.")
    fqan: KeyField | None = Field(default=None, description="Default: the VO.")
    active: ComponentField | None = Field(
        default=None, description="Seconds in which a job's accelerators were busy; default: the whole runtime."
    )
    associated_record_type: Name = Field(description="EGI's draft defines cloud only: agree on another one with APEL.")
    associated_record: KeyField | None = Field(default=None, description="Default: the submit host.")
    topic: Name = Field(description="The topic of these messages.")


class ApelConfig(PluginConfig):
    """Reports usage to EGI's accounting, APEL."""

    message_type: MessageType = MessageType.SUMMARIES
    summary_message: SummaryLayout = Field(
        default=SummaryLayout.NORMALISED_4,
        description="The format of summaries; APEL normalises v0.4 and v0.2 itself.",
    )
    job_message: JobLayout = JobLayout.V4
    site: SiteConfig
    benchmarks: tuple[Benchmark, ...] = Field(
        default=(Benchmark(type="HEPscore23", score="HEPscore23"),),
        min_length=1,
        description="The first benchmark for which a record has a score is used. Sites with old and new nodes list "
        "several.",
    )
    messaging: MessagingConfig
    summary_fields: SummaryFields | None = None
    individual_job_fields: JobFields | None = None
    accelerators: AcceleratorConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ApelConfig":
        if self.message_type is MessageType.SUMMARIES and self.summary_fields is None:
            raise ValueError("summary_fields is needed for message_type: summaries")
        if self.message_type is MessageType.INDIVIDUAL_JOBS and self.individual_job_fields is None:
            raise ValueError("individual_job_fields is needed for message_type: individual_jobs")
        if self.accelerators is not None and self.summary_fields is None:
            raise ValueError("accelerators need summary_fields, since they are grouped by these as well")
        if self.accelerators is not None and "/topics/" not in (self.messaging.ams_url or "/topics/"):
            raise ValueError("accelerators have their own topic, so ams_url must name one: .../topics/TOPIC:publish")
        scores = scores_of(self.summary_fields)
        if len(scores) > 1:
            raise ValueError("the two normalised durations name different scores; APEL refuses a mixture")
        if scores and "benchmarks" in self.model_fields_set:
            raise ValueError("both the normalised fields and benchmarks name scores: keep one")
        return self

    @property
    def scores(self) -> tuple[Benchmark, ...]:
        """The benchmarks in order of preference. The first one that a record has is used."""
        named = scores_of(self.summary_fields)
        if not named:
            return self.benchmarks
        return tuple(
            [Benchmark(type=self.site.benchmark_type, score=s.name, component=s.component_name) for s in named]
        )


def needs(config: ApelConfig) -> list[str]:
    """Return the components without which jobs are left out."""
    fields = config.summary_fields if config.message_type is MessageType.SUMMARIES else config.individual_job_fields
    asked = () if fields is None else (fields.mandatory.CpuDuration, fields.mandatory.Processors)
    named = [field.name for field in asked if isinstance(field, ComponentField)]
    return list(dict.fromkeys([*named, *(each.component for each in config.scores)]))


def needs_labels(config: ApelConfig) -> list[tuple[str, ...]]:
    """Return the labels of the site and of the mandatory fields. Without one, APEL gets ``None``."""
    fields = config.summary_fields if config.message_type is MessageType.SUMMARIES else config.individual_job_fields
    mandatory = () if fields is None else dict(fields.mandatory).values()
    named = [field.name for field in mandatory if isinstance(field, MetaField)]
    return [config.site.site_meta_field, *named]


def remarks(config: ApelConfig) -> list[str]:
    """Return a remark if the first run would fail."""
    if config.site.publish_since is not None:
        return []
    text = (
        "site.publish_since is missing, so the first run fails: set it to the beginning of the first month that this "
        "daemon reports, such as 2026-01-01T00:00:00Z, and let the collector read all jobs since then "
        "(earliest_datetime)"
    )
    return [text]


def scores_of(fields: SummaryFields | None) -> list[ScoreField]:
    """Return the scores that the normalised fields name, without duplicates."""
    if fields is None:
        return []
    named = [fields.mandatory.NormalisedCpuDuration.score, fields.mandatory.NormalisedWallDuration.score]
    return list(dict.fromkeys(score for score in named if score is not None))
