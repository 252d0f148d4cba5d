"""HTCondor on this host, and a configuration that fits it, for ``auditord init``.

One ad of the history is asked for: programs that are installed on a host without a schedd find nothing to read.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from auditord_hookspecs.proposals import Answers, Proposal, RunProgram

_COMMENTS: Final = {
    "condor_history": "Of a compute element.",
    "earliest_datetime": "Jobs that ended before this are left alone. The first run must reach them in the history.",
    "sites": "The first rule that holds names the site.",
}


def detect(run: RunProgram) -> Proposal | None:
    """A schedd of HTCondor, or that of a compute element, whose history this host can read."""
    for program, name in (("condor_ce_history", "HTCondor-CE"), ("condor_history", "HTCondor")):
        if run([program, "-limit", "1", "-af", "GlobalJobId"]) is not None:
            return Proposal(f"{name}, by {program}", partial(_options, program=program), (), _COMMENTS)
    return None


def _options(answers: Answers, *, program: str) -> Mapping[str, Any]:
    element = {} if program == "condor_history" else {"condor_history": program}
    return {
        **element,
        "earliest_datetime": f"{answers['since']}T00:00:00Z",
        "sites": [{"name": answers["site"]}],
    }
