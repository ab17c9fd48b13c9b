"""The committed stubs are fresh, and `protos/generate.py` knows when they are not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
API = Path("farm/api/v1")
MESSAGE = 'syntax = "proto3";\npackage farm.api.v1;\nmessage Ping {\n  string text = 1;\n}\n'
SERVICE = (
    'syntax = "proto3";\npackage farm.api.v1;\nimport "farm/api/v1/ping.proto";\n'
    "service PingService {\n  rpc Ask(Ping) returns (Ping);\n}\n"
)


def run_generate(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the generator of the checkout at `root`, with no tools on PATH."""
    return subprocess.run(
        [sys.executable, root / "protos/generate.py", *options],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout, in a folder with a space in its name, with one message and one service."""
    root = tmp_path / "a checkout"
    sources = root / "protos" / API
    sources.mkdir(parents=True)
    (sources / "ping.proto").write_text(MESSAGE)
    (sources / "asker.proto").write_text(SERVICE)
    (root / API).mkdir(parents=True)
    (root / API / "__init__.py").touch()
    shutil.copy(ROOT / "protos/generate.py", root / "protos")
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_committed_stubs_are_fresh() -> None:
    run = run_generate(ROOT, "--check")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_generate_writes_grpc_files_for_services_only(checkout: Path) -> None:
    run = run_generate(checkout)
    assert run.returncode == 0, run.stderr
    assert sorted(path.name for path in (checkout / API).iterdir()) == [
        "__init__.py",
        "asker_pb2.py",
        "asker_pb2.pyi",
        "asker_pb2_grpc.py",
        "asker_pb2_grpc.pyi",
        "ping_pb2.py",
        "ping_pb2.pyi",
    ]
    again = run_generate(checkout, "--check")
    assert (again.returncode, again.stdout) == (0, "")


def test_generate_check_names_what_is_stale_and_changes_nothing(checkout: Path) -> None:
    run_generate(checkout)
    edited, extra = checkout / API / "ping_pb2.pyi", checkout / API / "gone_pb2.py"
    edited.write_text("# edited by hand\n")
    extra.write_text("# its source was deleted\n")
    (checkout / API / "asker_pb2.py").unlink()
    run = run_generate(checkout, "--check")
    assert run.returncode == 1
    assert run.stdout.splitlines() == [
        f"stale: {API}/asker_pb2.py",
        f"stale: {API}/gone_pb2.py",
        f"stale: {API}/ping_pb2.pyi",
    ]
    assert edited.read_text() == "# edited by hand\n"
    assert extra.exists()


def test_generate_repairs_what_is_stale(checkout: Path) -> None:
    run_generate(checkout)
    (checkout / API / "ping_pb2.pyi").write_text("# edited by hand\n")
    (checkout / API / "gone_pb2.py").write_text("# its source was deleted\n")
    run = run_generate(checkout)
    assert run.stdout.splitlines() == [
        f"deleted: {API}/gone_pb2.py",
        f"written: {API}/ping_pb2.pyi",
    ]
    assert run_generate(checkout, "--check").returncode == 0


def test_generate_of_a_source_that_does_not_compile_says_where(checkout: Path) -> None:
    (checkout / "protos" / API / "ping.proto").write_text(MESSAGE.replace("string", "strin"))
    run = run_generate(checkout)
    assert run.returncode == 2
    assert 'ping.proto:4:3: "strin" is not defined' in run.stderr


def test_generate_without_sources_is_refused(checkout: Path) -> None:
    shutil.rmtree(checkout / "protos" / API)
    run = run_generate(checkout)
    assert run.returncode == 2
    assert "no .proto file" in run.stderr


def test_generate_with_an_unpinned_generator_is_refused(checkout: Path) -> None:
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace("grpcio-tools==", "grpcio-tools>="))
    run = run_generate(checkout)
    assert run.returncode == 2
    assert "must pin grpcio-tools" in run.stderr


def test_generate_with_another_version_of_the_generator_is_refused(checkout: Path) -> None:
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace("mypy-protobuf==", "mypy-protobuf==0."))
    run = run_generate(checkout)
    assert run.returncode == 2
    assert run.stderr.startswith("mypy-protobuf: the pinned version is 0.")
