"""The wire: one servicer a file, thin.

Owns: checking what comes in, and turning messages into values and back.
Does not own: any decision. Invariant: nothing reaches the tracker unchecked.
"""
