"""Generate `farm/api/v1` from `protos/farm/api/v1`, or check that the committed files are fresh.

Owns: the generated files of `farm/api/v1` (`*_pb2.py`, `*_pb2_grpc.py` and their `.pyi`); it
writes, replaces and deletes them. Does not own: any other file there, such as `__init__.py`.

Invariant: after a run the generated files are exactly what the pinned generator makes of the
sources. The pins are those of the `dev` extra in `pyproject.toml`, because code from a newer
generator refuses to load on an older protobuf or grpcio runtime; another version is an error.

    python protos/generate.py           # write what differs, delete what has no source
    python protos/generate.py --check   # write nothing; name what is stale, exit 1 if anything is
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = Path("farm/api/v1")
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
GENERATORS = ("grpcio-tools", "mypy-protobuf")
SERVICE = re.compile(r"^service\s+\w", re.MULTILINE)


class GenerateError(Exception):
    """The files cannot be generated; the message says what to correct."""


def check_generators() -> None:
    """Raise `GenerateError` unless each generator is installed in the version that is pinned."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name in GENERATORS:
        pins = [
            requirement.partition("==")[2]
            for requirement in project["optional-dependencies"]["dev"]
            if requirement.partition("==")[0] == name
        ]
        if len(pins) != 1:
            raise GenerateError(f"pyproject.toml: the dev extra must pin {name} with == (once)")
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "none"
        if installed != pins[0]:
            raise GenerateError(
                f"{name}: the pinned version is {pins[0]} ({installed} installed); run make setup"
            )


def find_sources() -> list[Path]:
    """Return the `.proto` files, sorted; raise `GenerateError` if there is none."""
    sources = sorted((PROTOS / PACKAGE).glob("*.proto"))
    if not sources:
        raise GenerateError(f"{PROTOS / PACKAGE}: no .proto file; is this checkout complete?")
    return sources


def generate(sources: list[Path], out: Path) -> dict[str, bytes]:
    """Run the generator into the empty folder `out` and return each file's name and bytes.

    A source without a service gets no `_pb2_grpc` files: they would hold only a version check.
    """
    scripts = Path(sys.executable).parent  # the plug-ins are not on PATH outside an active venv
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"),
        *(
            f"--plugin={name}={scripts / name}"
            for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
        ),
        *(f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")),
        *map(str, sources),
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise GenerateError(f"protoc: the sources do not compile; correct them:\n{run.stderr}")
    services = {path.stem for path in sources if SERVICE.search(path.read_text("utf-8"))}
    return {
        path.name: path.read_bytes()
        for path in sorted((out / PACKAGE).iterdir())
        if "_pb2_grpc." not in path.name or path.name.partition("_pb2_grpc.")[0] in services
    }


def find_stale(fresh: dict[str, bytes], folder: Path) -> list[str]:
    """Return the names in `folder` that are missing, differ from `fresh`, or have no source."""
    committed = {
        path.name: path.read_bytes() for path in folder.glob("*") if path.name.endswith(SUFFIXES)
    }
    names = fresh.keys() | committed.keys()
    return sorted(name for name in names if fresh.get(name) != committed.get(name))


def write(fresh: dict[str, bytes], names: list[str], folder: Path) -> None:
    """Write each of `names` from `fresh` into `folder`; delete one that `fresh` does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in fresh:
            (folder / name).write_bytes(fresh[name])
        else:
            (folder / name).unlink()


def main() -> int:
    """Run the command line; return 0 if fresh or written, 1 if stale, 2 if not possible."""
    parser = argparse.ArgumentParser(description="Generate farm/api/v1 from protos/.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if any is stale"
    )
    check: bool = parser.parse_args().check
    try:
        check_generators()
        with tempfile.TemporaryDirectory() as out:
            fresh = generate(find_sources(), Path(out))
    except GenerateError as error:
        print(error, file=sys.stderr)
        return 2
    stale = find_stale(fresh, ROOT / PACKAGE)
    if not check:
        write(fresh, stale, ROOT / PACKAGE)
    for name in stale:
        print(
            f"{'stale' if check else 'written' if name in fresh else 'deleted'}: {PACKAGE / name}"
        )
    if check and stale:
        print(
            "stubs: not what protos/ generates; run make proto and commit the result",
            file=sys.stderr,
        )
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
