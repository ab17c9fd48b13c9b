"""The accelerator `ea`, compiled once for this host and then fast.

Owns the compiled machine: checks, arithmetic and the cycle model, specialised to a configuration.
Does not own their meaning, which `farm.ea` has and tests hold this against.
"""
