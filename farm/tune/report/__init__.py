"""The report: one self-contained page about what was recorded.

Owns: which plots there are, and the page. Does not own: records.

Invariant: the page loads nothing from anywhere, and whatever text it shows is escaped.
"""

from farm.tune.report.page import report

__all__ = ["report"]
