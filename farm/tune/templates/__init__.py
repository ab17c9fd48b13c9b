"""Templates: spaces of schedules for a function on a target.

Owns: which choices there are and what schedule each one is. Does not own: recipes (`farm.ops.schedules`), searching.

Invariant: valid by construction: each configuration of a template's space is a schedule that computes the same.
"""

from farm.tune.templates.template import Template, template_for

__all__ = ["Template", "template_for"]
