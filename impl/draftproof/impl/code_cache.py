"""Where does compiled code come from at the next start? From a folder that is named after all it was made of.

Compiling takes seconds, so what it made is kept on disk, by Numba (`cache=True`). Numba alone would go wrong:
it looks at the file of the function that is called, not at the functions called from there, and goes on
running the old arithmetic after an edit in another file. Therefore the folder's name is a digest of every
source of `draftproof.spec` and `draftproof.impl`, of the versions of Numba, llvmlite, numpy and Python, of
the processor, and of the settings that change code. Whatever is edited or installed, another folder is asked.

The folders are in `DRAFTPROOF_CACHE_DIR`, else in the user's cache folder: `$XDG_CACHE_HOME/draftproof` or
`~/.cache/draftproof`, on macOS `~/Library/Caches/draftproof`. The last few used are kept. They may be deleted
at any time. Where nothing can be written, every start compiles, and one line in the log says so. Loading runs
what the folder holds: only a folder that belongs to the user is used.

Only functions of these two packages are kept, and only for argument types that are known beforehand. Code
that was edited after this process started is compiled but not kept: the modules in memory may be older than
their files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.extending import register_jitable

from draftproof import impl, spec
from draftproof.impl.progress_line import progress_line

BOUNDSCHECK = os.environ.get("DRAFTPROOF_DEBUG") == "middle"
"""Whether compiled code checks every index: the middle mode. It is one for the whole process, since Numba
does not hand a caller's option down to the functions it calls."""
OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "boundscheck": BOUNDSCHECK,
    "_nrt": False,
    "no_cfunc_wrapper": True,  # nobody calls them from C
}
"""What an entry point is compiled with. Of these the error model reaches the called functions by itself.

`_nrt` is no documented option of Numba's: without it every call of a function counts references of all
arrays in its arguments. The scheduler's state is fifty arrays, all of which live as long as the scheduler;
counting them made its step four to five times slower, and no documented way avoids it. Compiled functions
here allocate nothing."""
CALLED_OPTIONS: dict[str, Any] = {
    "boundscheck": BOUNDSCHECK,
    "_nrt": False,
    "forceinline": True,
    "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
}
"""What the functions that entry points call are compiled with.

All of them become part of their callers: passed in a call, the scheduler's state is four hundred words to
copy. Scheduling one request took twice as long with calls as without, and compiling them took longer, too.
Nobody calls these functions from Python or C, so nothing is made for that either. The options are the same
for all functions because Numba compiles one anew for each set of options of its callers."""
SETTINGS = (
    "BOUNDSCHECK",
    "CPU_FEATURES",
    "CPU_NAME",
    "DEBUGINFO_DEFAULT",
    "DEBUG_NRT",
    "DISABLE_INTEL_SVML",
    "ENABLE_AVX",
    "EXTEND_VARIABLE_LIFETIMES",
    "LLVM_REFPRUNE_FLAGS",
    "LLVM_REFPRUNE_PASS",
    "LOOP_VECTORIZE",
    "NRT_STATS",
    "OPT",
    "SLP_VECTORIZE",
)
"""Numba's settings (the environment's `NUMBA_...`) that change the code it makes."""
NUM_KEPT = 8
"""Folders to keep: two versions of the source on two kinds of machine, with and without checks."""
NAME = re.compile("compiled-[0-9a-f]{32}")
ABOUT = "about.txt"
"""In each folder of ours; without it a folder is never deleted."""

Function = TypeVar("Function", bound=Callable[..., Any])
_numba: Any = numba  # its annotations cover little of what it documents
_directing = threading.Lock()


def _process_start() -> float:
    """When this process started, on the clock that stamps files; where Linux does not say, now."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        # One more: ticks are rounded down, and Python needs longer than one to its first import.
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - (ticks + 1) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        age = 0.0
    return time.time() - age


STARTED = _process_start()


def register(function: Function) -> Function:
    """Let compiled code call the function. To be used for every function that a compiled one calls."""
    _register(function)
    return function


@functools.cache
def _register(function: Callable[..., Any]) -> None:
    register_jitable(**CALLED_OPTIONS)(function)


def compile(function: Callable[..., Any], *arguments: Any, nogil: bool = False) -> Any:
    """The function, compiled for arguments of the same types as these examples, or loaded.

    With `nogil` it lets other threads run meanwhile; who calls it sees that nobody else touches the arrays.

    The result takes no other types; it can be called from compiled functions. Without examples nothing is
    kept: the function is compiled at its first call with whatever types it gets. On a terminal a line says
    what is being compiled. Raises Numba's own errors for what cannot be compiled, and ValueError for a
    function of these packages that is nested in another: what it closes over has no name on disk.
    """
    if not arguments or _numba.config.DISABLE_JIT:
        return _numba.njit(nogil=nogil, **OPTIONS)(function)
    if function.__closure__ and _is_ours(function):
        raise ValueError(f"{function.__qualname__} closes over variables: write it at the module's top")
    signature = tuple(_numba.typeof(argument) for argument in arguments)
    with progress_line(f"draftproof: compiling {function.__name__.lstrip('_')}"):
        place = _place(function, signature, nogil)
        if place is None:
            compiled = _compiled(function, signature, nogil)
        else:
            compiled = _kept(function, signature, place, nogil)
    compiled.disable_compile()
    return compiled


def is_kept(function: Callable[..., Any], *arguments: Any) -> bool | None:
    """Whether `compile` would load the function for these examples; None if it could not keep it either."""
    if _numba.config.DISABLE_JIT:
        return None
    place = _place(function, tuple(_numba.typeof(argument) for argument in arguments))
    return None if place is None else any(place.rglob("*.nbi"))


def _compiled(function: Callable[..., Any], signature: tuple[Any, ...], nogil: bool = False) -> Any:
    """Compiled anew; nothing is read or written."""
    compiled = _numba.njit(nogil=nogil, **OPTIONS)(function)
    compiled.compile(signature)
    return compiled


def _kept(function: Callable[..., Any], signature: tuple[Any, ...], place: Path, nogil: bool = False) -> Any:
    """Loaded from the place, or compiled and written there. A trouble with files costs a compilation."""
    compiled = None
    try:
        with _directed_to(place):
            compiled = _numba.njit(cache=True, nogil=nogil, **OPTIONS)(function)
        compiled.compile(signature)
    except _numba.errors.NumbaError:
        raise
    except Exception as problem:  # a full disk; a file cut short, whose unpickling raises anything
        _say_once(f"compiled code could not be kept in {place}: {problem}")
        shutil.rmtree(place, ignore_errors=True)
        if compiled is None or not compiled.signatures:
            return _compiled(function, signature, nogil)
    return compiled


@contextlib.contextmanager
def _directed_to(place: Path) -> Iterator[None]:
    """Numba keeps functions decorated meanwhile in this place and nowhere else (not beside their sources).

    These are the settings `NUMBA_CACHE_DIR` and `NUMBA_CACHE_LOCATOR_CLASSES`; Numba reads them when it
    decorates. The user's own values hold again afterwards, for everybody else's functions.
    """
    ours = {"CACHE_DIR": str(place), "CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    with _directing:
        before = {name: getattr(_numba.config, name) for name in ours}
        try:
            for name, value in ours.items():
                setattr(_numba.config, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(_numba.config, name, value)


def _is_ours(function: Callable[..., Any]) -> bool:
    """Whether the digest covers the function's source."""
    return function.__module__.startswith(("draftproof.spec.", "draftproof.impl."))


def _place(function: Callable[..., Any], signature: tuple[Any, ...], nogil: bool = False) -> Path | None:
    """A folder for one function and these types alone; None if it is not to be kept.

    Alone, because two processes that keep different types of one function at once may get their files mixed
    up: Numba numbers them by what it finds. The same types give the same code, and files appear at once.
    """
    if not _is_ours(function):
        return None
    changed, key = _changed_source(), sources_digest()
    if changed is not None:
        _say_once(f"{changed} was changed after this process started: compiled code is not kept")
        return None
    folder = None if key is None else _folder(base_folder(), _digest_of(key, *_made_with()))
    if folder is None:
        return None
    name = f"{function.__module__}.{function.__qualname__}" + (" nogil" if nogil else "")
    return folder / f"{function.__name__}-{_digest_of(name, str(signature))[:12]}"


def _digest_of(*parts: str | bytes) -> str:
    """32 hexadecimal digits for these texts."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


def _sources() -> list[tuple[str, Path]]:
    """The source files of `spec` and `impl`, each with its name there."""
    found = []
    for package in (spec, impl):
        folder = Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            found.append((f"{package.__name__}/{path.relative_to(folder).as_posix()}", path))
    return found


def _changed_source() -> Path | None:
    """A source that was changed since this process started."""
    for _, path in _sources():
        status = path.stat()
        if max(status.st_mtime, status.st_ctime) >= STARTED:
            return path
    return None


@functools.cache
def sources_digest() -> str | None:
    """The digest of all sources of `spec` and `impl` as this process found them; None if there are none."""
    parts = [part for name, path in _sources() for part in (name, path.read_bytes())]
    return _digest_of(*parts) if parts else None


def _made_with() -> list[str]:
    """What else decides on the code: versions, processor, settings."""
    settings = [f"{name}={getattr(_numba.config, name, None)}" for name in SETTINGS]
    return [
        _numba.__version__,
        llvmlite.__version__,
        np.__version__,
        sys.version,
        platform.machine(),
        llvmlite.binding.get_process_triple(),
        llvmlite.binding.get_host_cpu_name(),
        llvmlite.binding.get_host_cpu_features().flatten(),
        repr(sorted(OPTIONS.items())),
        os.environ.get("DRAFTPROOF_DEBUG", ""),
        *settings,
    ]


def base_folder() -> Path:
    """Where the folders with compiled code are; `DRAFTPROOF_CACHE_DIR` comes first."""
    chosen = os.environ.get("DRAFTPROOF_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path("~/Library/Caches/draftproof").expanduser()
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "draftproof" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "draftproof"


@functools.cache
def _folder(base: Path, key: str) -> Path | None:
    """The folder of this key, ready to be written to; None if it cannot be."""
    folder = base / f"compiled-{key}"
    try:
        new = not folder.exists()
        base.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if hasattr(os, "geteuid") and folder.stat().st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user")
        tempfile.TemporaryFile(dir=folder).close()
        os.utime(folder)  # the time of its last use
        if new:
            (folder / ABOUT).write_text("Compiled code of draftproof. It may be deleted at any time.\n")
    except OSError as problem:
        _say_once(
            f"compiled code is not kept, so every start compiles: {problem}. "
            "DRAFTPROOF_CACHE_DIR names another folder."
        )
        return None
    if new:
        _prune(base)
    return folder


def _prune(base: Path) -> None:
    """Delete the folders of ours that were not used for longest; never one that may be in use now."""
    found = []
    with contextlib.suppress(OSError):
        for entry in base.iterdir():
            with contextlib.suppress(OSError):  # another process may delete it meanwhile
                if NAME.fullmatch(entry.name) and (entry / ABOUT).is_file():
                    found.append((entry.stat().st_mtime, entry))
    for used, entry in sorted(found, reverse=True)[NUM_KEPT:]:
        if time.time() - used > 3600:
            shutil.rmtree(entry, ignore_errors=True)  # refuses what is only a link to a folder


@functools.cache
def _say_once(text: str) -> None:
    logging.getLogger(__name__).warning("%s", text)
