"""Artifacts: the one file that a build gives, what is in it, and what of it a device runs.

Owns: the `.farm` format, signatures, the constants of ABI 1, merging and thinning, the choice of
slices. Does not own: making modules (`farm.codegen`), running them (`farm.runtime`), or storing
files.

Invariant: reading an artifact executes nothing, checks every byte, and raises only `ArtifactError`.
"""

from farm.artifact.artifact import Artifact, assemble, merge
from farm.artifact.choice import Choice, choose
from farm.artifact.inspection import inspect_bytes
from farm.artifact.module import EA_PROGRAM, ELF_OBJECT, BuiltModule, Section
from farm.artifact.signature import ParamSpec, Signature, check_inputs

__all__ = [
    "EA_PROGRAM",
    "ELF_OBJECT",
    "Artifact",
    "BuiltModule",
    "Choice",
    "ParamSpec",
    "Section",
    "Signature",
    "assemble",
    "check_inputs",
    "choose",
    "inspect_bytes",
    "merge",
]
