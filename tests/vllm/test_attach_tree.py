"""Another vLLM's files are taken from what was named, and only those; otherwise one sentence says why not."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.vllm import attach_tree
from tests.vllm.attach_tree import VARIABLE, NoTreeError, patched, tree

FILES = {
    "vllm/__init__.py": "number = 1\n",
    "vllm/v1/core.py": "a = 1\nb = 2\nc = 3\n",
    "vllm/big.so": "compiled",
    "vllm/../outside.py": "",
    "setup.py": "raise SystemExit",
}
TAKEN = ["vllm/__init__.py", "vllm/v1/core.py"]
PATCH = """--- a/vllm/v1/core.py
+++ b/vllm/v1/core.py
@@ -1,3 +1,3 @@
 a = 1
-b = 2
+b = 20
 c = 3
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, for this test."""
    monkeypatch.setattr(attach_tree, "CACHE", tmp_path / "build" / "vllm")
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["wheel", "sources"])
def test_an_archive_is_unpacked_once(kind: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = elsewhere / kind
    if kind == "wheel":
        with zipfile.ZipFile(archive, "w") as wheel:
            for name, text in FILES.items():
                wheel.writestr(name, text)
    else:
        sources = elsewhere / "there" / "vllm-9.9"
        for name, text in FILES.items():
            path = sources / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        with tarfile.open(archive, "w:gz") as packed:
            for name in FILES:
                packed.add(sources / name, f"vllm-9.9/{name}")
    monkeypatch.setenv(VARIABLE, str(archive))
    found = tree()
    assert below(found) == TAKEN and below(found.parent) == [f"{found.name}/{name}" for name in TAKEN]
    (found / "vllm" / "mark").touch()
    assert (tree() / "vllm" / "mark").exists()


def test_a_folder_is_taken_as_it_is_and_patched_elsewhere(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in TAKEN:
        path = elsewhere / "plain" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILES[name])
    monkeypatch.setenv(VARIABLE, str(elsewhere / "plain"))
    assert tree() == elsewhere / "plain"
    (elsewhere / "one.patch").write_text(PATCH)
    (elsewhere / "patched").mkdir()
    found = patched(tree(), [elsewhere / "one.patch"], elsewhere / "patched")
    assert (found / "vllm/v1/core.py").read_text() == "a = 1\nb = 20\nc = 3\n"
    assert (found / "vllm/__init__.py").read_text() == FILES["vllm/__init__.py"]
    assert (tree() / "vllm/v1/core.py").read_text() == FILES["vllm/v1/core.py"]


def test_what_is_no_vllm_is_refused_in_one_sentence(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "text").write_text("no archive")
    with zipfile.ZipFile(elsewhere / "other", "w") as wheel:
        wheel.writestr("other/__init__.py", "")
    for name, sentence in {
        "nothing": "there is no .*nothing/vllm/__init__.py",
        "text": "text cannot be unpacked",
        "other": "other holds no vllm/__init__.py",
    }.items():
        monkeypatch.setenv(VARIABLE, str(elsewhere / name))
        with pytest.raises(NoTreeError, match=sentence):
            tree()
    assert not list((elsewhere / "build").iterdir())


def test_pip_brings_the_source_archive_and_no_other(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network: pip finds an archive in a folder. Its build backend is never asked."""
    archive = elsewhere / "links" / f"vllm-{attach_tree.VERSION}.tar.gz"
    archive.parent.mkdir()
    there = elsewhere / f"vllm-{attach_tree.VERSION}"
    backend = '[build-system]\nrequires = ["absent"]\nbuild-backend = "setuptools.build_meta"\n'
    for name, text in {"vllm/__init__.py": "", "pyproject.toml": backend, "setup.py": "1 / 0"}.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(text)
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(there, there.name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        NoTreeError, match=r"pip cannot download the source archive of vLLM 0\.33\.0 \(ERROR: "
    ):
        tree()
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    with pytest.raises(NoTreeError, match="HASHES"):
        tree()
    assert not (elsewhere / "build").exists()
    monkeypatch.setattr(attach_tree, "SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    assert below(tree()) == ["vllm/__init__.py"]
