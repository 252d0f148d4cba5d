"""Reports of usage by group and period, with the same figures for the command line and the page.

* :mod:`measures`: core hours, efficiencies and so on, computed from the store's sums; each measure is defined once.
  How people read their figures.
* :mod:`questions`: a requested report, and its query to the store.
* :mod:`periods`: named calendar periods, and the periods before them.
* :mod:`pledges`: promised capacity, with which usage is compared.
* :mod:`report`: rows, bins and totals of the answer, bins that it covers only in part, and the time axis.
* :mod:`writing`: the numbers of a report, as CSV, JSON, Parquet and XLSX.
"""

from auditord.reporting.measures import MEASURES, Figure, Measure
from auditord.reporting.questions import LabelKeys, Question
from auditord.reporting.report import Report, Row

__all__ = ["MEASURES", "Figure", "LabelKeys", "Measure", "Question", "Report", "Row"]
