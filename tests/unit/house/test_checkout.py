"""What holds for the files of the checkout, and what `make help` promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROMISED = {
    *("help", "setup", "demo", "test", "check", "fmt"),
    *("lint", "type", "proto", "bench", "clean"),
}

# Written so that this file does not contain what it looks for.
PRIVATE = re.compile(
    r"/(?:home|Users)/[\w.-]+/"
    r"|(?<!\w)/[r]oot/"
    r"|py" + r"pi\.org|pythonhosted\.org|registry\.npmjs\.org|crates\.io/api|proxy\.golang\.org"
    r"|https?://\S+/simple\b"
)


def tracked_files() -> list[Path]:
    """Return the files that git tracks; those deleted from the folder are left out."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a clone: only git knows which files are tracked")
    # A clone of another owner is refused without the option; reading its list of files is harmless.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=180)
    return [ROOT / name for name in run.stdout.split("\0") if name and (ROOT / name).is_file()]


def local_paths() -> list[str]:
    """Return this checkout's own folder and the home folder, where they are telling enough."""
    return [str(path) for path in (ROOT, Path.home()) if len(path.parts) > 2]


def private_words(text: str) -> list[str]:
    """Return what in `text` is a home folder, a path of this machine or a package registry."""
    return [
        *(found[0] for found in PRIVATE.finditer(text)),
        *(path for path in local_paths() if re.search(rf"{re.escape(path)}(?![\w-])", text)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "cd /ho" + "me/ada/farm",
        "open('/ro" + "ot/.cache')",
        "--index" + "-url https://mirror.example.org/simp" + "le",
        "https://files.pythonhos" + "ted.org/packages",
        f"see {ROOT}/farm",
    ],
)
def test_private_words_of_a_telling_text_are_found(text: str) -> None:
    assert private_words(text)


def test_tracked_files_name_neither_this_machine_nor_a_registry() -> None:
    files = tracked_files()
    assert ROOT / "pyproject.toml" in files
    found = {
        str(path.relative_to(ROOT)): words
        for path in files
        if (words := private_words(path.read_bytes().decode("utf-8", "replace")))
    }
    assert found == {}


def run_make(*arguments: str) -> str:
    """Return what make prints, run as from a shell even when make runs the tests."""
    inherited = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")
    environment = {key: value for key, value in os.environ.items() if key not in inherited}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    ).stdout


def test_make_help_lists_every_documented_target_with_its_text() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    documented = re.findall(r"^([\w.-]+):.*?## (.+)$", makefile, re.MULTILINE)
    listed = [tuple(line.split(maxsplit=2)[1:]) for line in run_make("help").splitlines()]
    assert listed == documented
    assert {name for name, _ in listed} >= PROMISED


def test_make_without_a_target_prints_the_help() -> None:
    assert run_make() == run_make("help")


def test_make_targets_are_all_phony() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    documented = re.findall(r"^([\w.-]+):.*?## ", makefile, re.MULTILINE)
    phony = re.findall(r"^\.PHONY: (help .+)$", makefile, re.MULTILINE)
    assert phony[0].split() == documented
