"""The completeness audit: a source's inventory against the record store.

* ``values``: what is asked and answered; ``comparing``: what is stored of some jobs of the inventory;
  ``tallying``: counts by day and site, and the ids that the inventory has named, on disk;
* ``auditing``: all of it, for one collector and one period.
"""

from auditord.audit.auditing import Audit, Repairs
from auditord.audit.comparing import Sides
from auditord.audit.values import AuditReport, AuditRequest, DayCounts, Discrepancy

__all__ = ["Audit", "AuditReport", "AuditRequest", "DayCounts", "Discrepancy", "Repairs", "Sides"]
