"""How does a step run on the model? Synchronously: schedule, compute, verify, settle, draft.

`Engine` owns the loop; `Runner` computes one step of it on the device; `step_inputs` says which tokens it
computes and where it samples.
"""

from draftproof.gpu.runner.engine import Engine, EngineTotals
from draftproof.gpu.runner.requests import RequestResult, TokenLogprobs
from draftproof.gpu.runner.runner import Runner

__all__ = ["Engine", "EngineTotals", "RequestResult", "Runner", "TokenLogprobs"]
