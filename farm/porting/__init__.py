"""For authors of accelerators: contract tests, a working start, and tuning of single layers.

Owns: `check_accelerator` and what it checks, the files of a new package, `tune_layer`. Does not own: the surface itself
(`farm.accel`).

Invariant: a check that passes was really made: what cannot be made is told as skipped, with the reason.
"""

from farm.porting.check import check_accelerator
from farm.porting.findings import Finding, Report

__all__ = ["Finding", "Report", "check_accelerator"]
