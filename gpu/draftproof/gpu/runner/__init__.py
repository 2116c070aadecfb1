"""How does a step run on the model? Scheduled, launched, settled; asynchronously with the next one under way.

`Engine` owns the loop; `Runner` enqueues one step on the device, which counts by itself; `step_input` is what
the host tells it.
"""

from draftproof.gpu.runner.comparison import LedgerError
from draftproof.gpu.runner.engine import Engine, EngineTotals, StalledError
from draftproof.gpu.runner.requests import RequestOutput, RequestResult, Timings, TokenLogprobs
from draftproof.gpu.runner.runner import Runner

__all__ = [
    "Engine",
    "EngineTotals",
    "LedgerError",
    "RequestOutput",
    "RequestResult",
    "Runner",
    "StalledError",
    "Timings",
    "TokenLogprobs",
]
