"""Reports: usage by group and period, the same figures for the command line and the page.

* :mod:`measures`: from the sums of the store to core hours, efficiencies and so on; each measure is defined once.
* :mod:`questions`: a report that is wanted, the question to the store that answers it, named periods, and pledges.
* :mod:`report`: rows, bins and totals of the answer, and the bins that it covers only in part.
* :mod:`writing`: the numbers of a report, as CSV, JSON, Parquet and XLSX.
"""

from auditord.reporting.measures import MEASURES, Figure, Measure
from auditord.reporting.questions import LabelKeys, Question
from auditord.reporting.report import Report, Row

__all__ = ["MEASURES", "Figure", "LabelKeys", "Measure", "Question", "Report", "Row"]
