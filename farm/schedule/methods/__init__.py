"""The methods of schedules, by family.

Owns: names, arguments and documentation, before and after by example. Does not own: what a step does (the modules of
`farm.schedule` with the primitives' names).

Invariant: a method takes one step of its own name, or several.
"""
