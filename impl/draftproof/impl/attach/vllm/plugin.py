"""The entry point `vllm.general_plugins`: checks without a flag, switched on by the environment.

vLLM loads it in every process of an engine, and swallows what it raises; so that nobody believes in checks
that are not there, it says in one log line that they are on, or why they are not.
"""

from __future__ import annotations

import atexit
import logging
from typing import TYPE_CHECKING

from draftproof.impl.attach.vllm import settings

if TYPE_CHECKING:
    from draftproof.impl.attach.vllm.install import Installed

logger = logging.getLogger("draftproof.attach.vllm")
_installed: list[Installed | None] = []
"""Once vLLM has asked: the checks, or None where they could not be switched on."""


def register() -> None:
    """Called by vLLM. Does nothing, and imports nothing, unless `DRAFTPROOF_VLLM` is set."""
    if not settings.switched_on() or _installed:
        return
    from draftproof.impl.attach.vllm import reports, versions
    from draftproof.impl.attach.vllm.around import Around
    from draftproof.impl.attach.vllm.install import Installed

    try:
        chosen = settings.read()
        around = Around(chosen)
    except (settings.SettingsError, versions.UnsupportedVersionError) as error:
        logger.error("draftproof: the scheduler is NOT checked: %s", error)
        _installed.append(None)
        return
    _installed.append(Installed(around))
    reports.say_at_exit()
    atexit.register(around.close)
    content = "with" if chosen.content else "without"
    logger.warning("draftproof: the scheduler is checked (%s, %s content checks)", chosen.mode, content)
