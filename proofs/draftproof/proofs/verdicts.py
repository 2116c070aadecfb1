"""What does a verdict say of a solver that was left out? A word that no solver says, read by everyone.

Apart from the solvers, so that counting and showing need none of them installed.
"""

from __future__ import annotations

NOT_ASKED = "not asked"
"""It is no verdict: nobody may count it as one."""
