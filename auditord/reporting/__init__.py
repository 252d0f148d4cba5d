"""Reports: usage by group and period, the same figures for the command line and the page.

* :mod:`measures`: from the sums of the store to core hours, efficiencies and so on; each measure is defined once.
* :mod:`questions`: a report that is wanted, and the question to the store that answers it.
* :mod:`report`: rows, bins and totals of the answer; :mod:`grid`: its numbers, for files of many cells.
* :mod:`bins`: weeks, months and years that a report covers only in part.
* :mod:`pledges`: capacity that was promised, in the unit of a measure.
* :mod:`periods`: named periods of the calendar.
* :mod:`writing`: CSV, JSON and Parquet; :mod:`workbook`: XLSX.
"""

from auditord.reporting.measures import MEASURES, Figure, Measure
from auditord.reporting.questions import LabelKeys, Question
from auditord.reporting.report import Report, Row

__all__ = ["MEASURES", "Figure", "LabelKeys", "Measure", "Question", "Report", "Row"]
