"""The demo: a small quantised network for handwritten digits, built and run on three kinds of device.

Owns: the network (`network`), its quantisation (`quantise`) and the tour through a farm (`tour`).
Does not own: anything that another program could need; it uses the farm as any user would.

Invariant: nothing that the report says is assumed; every number was measured in this run.
"""

from farm.demo.report import DemoResult
from farm.demo.tour import run_demo

__all__ = ["DemoResult", "run_demo"]
