"""The command ``farm``.

Owns: arguments, what is shown, exit codes. Does not own: doing anything; each command calls what a Python user would.

Invariant: results go to standard output and all else to standard error; with ``-o json`` standard output is exactly one
JSON document, after a failure ``{"error": {"code", "message", "details"}}``.
"""
