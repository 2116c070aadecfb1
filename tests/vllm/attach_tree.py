"""Where do the Python files of another vLLM come from? From a folder or an archive with a name, or from pip.

`DRAFTPROOF_VLLM_TREE` names an unpacked vLLM, its wheel or its source archive. Without it pip downloads the
source archive of 0.33.0 once (47 MB; its SHA-256 is compared), and its Python files are kept under
`build/vllm-0.33.0`. Nothing is built, and no code of vLLM's runs meanwhile: pip asks the build backend of a
source archive for a name and a version, and a stand-in answers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "DRAFTPROOF_VLLM_TREE"
VERSION = "0.33.0"
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
CACHE = Path(__file__).parents[2] / "build" / f"vllm-{VERSION}"
PIP_SECONDS = 600
BACKEND = f"""
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    there = Path(folder) / "vllm-{VERSION}.dist-info"
    there.mkdir()
    (there / "METADATA").write_text("Metadata-Version: 2.1\\nName: vllm\\nVersion: {VERSION}\\n")
    return there.name
"""


class NoTreeError(Exception):
    """The files are not to be had; the sentence says why."""


def tree() -> Path:
    """A folder that holds `vllm/__init__.py`. Raises NoTreeError."""
    named = os.environ.get(VARIABLE, "")
    if not named:
        if not (CACHE / "vllm" / "__init__.py").is_file():
            with tempfile.TemporaryDirectory(prefix="draftproof-vllm-") as folder:
                _unpack(_downloaded(Path(folder)), CACHE)
        return CACHE
    source = Path(named)
    if source.is_file():
        cached = CACHE.with_name(f"vllm-of-{source.name}")
        if not (cached / "vllm" / "__init__.py").is_file():
            _unpack(source, cached)
        return cached
    if not (source / "vllm" / "__init__.py").is_file():
        raise NoTreeError(f"{VARIABLE} names {named}, and there is no {named}/vllm/__init__.py")
    return source


def _downloaded(folder: Path) -> Path:
    """The source archive."""
    stand_in = folder / "stand-in" / "setuptools"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text("")
    (stand_in / "build_meta.py").write_text(BACKEND)
    wanted = folder / "wanted.txt"
    wanted.write_text(f"vllm=={VERSION} --hash=sha256:{SHA256}\n")
    options = ["--no-deps", "--no-binary", "vllm", "--no-build-isolation", "--quiet", "--no-input"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", str(wanted)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(stand_in.parent)},
            capture_output=True,
            text=True,
            timeout=PIP_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoTreeError(f"pip could not download the source archive of vLLM {VERSION}: {error}") from None
    found = list(folder.glob("vllm-*.tar.gz"))
    if done.returncode or not found:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        reason = " ".join(lines)[:300] or f"status {done.returncode}"
        raise NoTreeError(f"pip cannot download the source archive of vLLM {VERSION} ({reason})")
    return found[0]


def _unpack(archive: Path, target: Path) -> None:
    """The Python files of the package `vllm`. The folder gets its name when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unpacking-", dir=target.parent) as folder:
        ready = Path(folder) / "ready"
        try:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as wheel:
                    for entry in wheel.infolist():
                        if path := _wanted(entry.filename):
                            _write(ready / path, wheel.read(entry))
            else:
                with tarfile.open(archive) as sources:
                    for member in sources:
                        if member.isfile() and (path := _wanted(member.name.partition("/")[2])):
                            data = sources.extractfile(member)
                            assert data is not None
                            _write(ready / path, data.read())
        except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
            raise NoTreeError(f"{archive} cannot be unpacked: {error}") from None
        if not (ready / "vllm" / "__init__.py").is_file():
            raise NoTreeError(f"{archive} holds no vllm/__init__.py")
        shutil.rmtree(target, ignore_errors=True)
        ready.rename(target)


def _wanted(name: str) -> str | None:
    """A name in an archive, if it is a Python file of vLLM and leads nowhere else."""
    fits = name.startswith("vllm/") and name.endswith(".py") and ".." not in name.split("/")
    return name if fits else None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def patched(source: Path, patches: Sequence[Path], folder: Path) -> Path:
    """The tree with patches applied to it: links to its files, and copies of those that a patch changes."""
    changed = {
        Path(line.removeprefix("+++ b/"))
        for patch in patches
        for line in patch.read_text().splitlines()
        if line.startswith("+++ b/")
    }
    real = {parent for path in changed for parent in path.parents}
    for parent in sorted(real, key=lambda path: len(path.parts)):
        (folder / parent).mkdir(exist_ok=True)
        for entry in (source / parent).iterdir():
            path = parent / entry.name
            if path in changed:
                shutil.copyfile(entry, folder / path)
            elif path not in real:
                (folder / path).symlink_to(entry.resolve())
    for patch in patches:
        subprocess.run(
            ["git", "apply", "--unidiff-zero", str(patch.resolve())], cwd=folder, check=True, timeout=60
        )
    return folder
