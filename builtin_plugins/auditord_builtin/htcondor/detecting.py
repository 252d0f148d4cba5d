"""HTCondor on this host, and a configuration that fits it, for ``auditord init``.

One ad of the history is asked for: programs that are installed on a host without a schedd find nothing to read.
"""

from collections.abc import Mapping
from typing import Any, Final

from auditord_hookspecs.proposals import Answers, Host, Proposal, Question

_ELEMENT: Final = "condor_ce_history"
_NAMES: Final = {_ELEMENT: "HTCondor-CE", "condor_history": "HTCondor"}
_COMMENTS: Final = {
    "condor_history": "Of a compute element.",
    "earliest_datetime": "Jobs that ended before this are left alone. The first run must reach them in the history.",
    "sites": "The first rule that holds names the site.",
    "meta": "What APEL asks of grid jobs, beside user_id and group_id.",
}
_GRID_META: Final = (
    {"name": "voms", "key": "x509UserProxyFirstFQAN", "key_type": "String"},
    {"name": "user_dn", "key": "x509userproxysubject", "key_type": "String"},
    {"name": "submit_host", "key": "GlobalJobId", "key_type": "String", "matches": r"^(.*)#\d+\.\d+#\d+$"},
)


def detect(host: Host) -> Proposal | None:
    """A schedd of HTCondor, that of a compute element, or both, whose history this host can read."""
    programs = [name for name in _NAMES if host.run([name, "-limit", "1", "-af", "GlobalJobId"]) is not None]
    if not programs:
        return None
    both = len(programs) > 1
    question = Question("htcondor_history", f"Jobs of which history: {' or '.join(programs)}", programs[0])
    return Proposal(
        " and ".join(f"{_NAMES[name]}, by {name}" for name in programs),
        lambda answers: _options(answers, answers["htcondor_history"] if both else programs[0]),
        (question,) if both else (),
        _COMMENTS,
        gateway=programs == [_ELEMENT],
    )


def _options(answers: Answers, program: str) -> Mapping[str, Any]:
    if program not in _NAMES:
        raise ValueError(f"htcondor_history: '{program}' is neither condor_history nor {_ELEMENT}")
    element = {"condor_history": program, "meta": list(_GRID_META)} if program == _ELEMENT else {}
    return {
        **element,
        "earliest_datetime": f"{answers['since']}T00:00:00Z",
        "sites": [{"name": answers["site"]}],
    }
