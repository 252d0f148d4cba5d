"""The work of AUDITOR's plugins: the released blocking client pulls all records that stopped since an instant.

``pulling_child.py PORT SINCE`` prints how many there were, the seconds that it took and its peak memory (MiB) as JSON.
"""

import importlib
import json
import resource
import sys
import time
from typing import Any
from urllib.parse import quote

pyauditor: Any = importlib.import_module("pyauditor")  # Any: the wheel has no types


def main(port: int, since: str) -> None:
    """Pull once."""
    client = pyauditor.AuditorClientBuilder().address("127.0.0.1", port).timeout(3_600).build_blocking()
    begun = time.perf_counter()
    records = client.advanced_query(f"stop_time[gte]={quote(since, safe='')}")
    seconds = time.perf_counter() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps({"records": len(records), "seconds": seconds, "memory": memory}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
