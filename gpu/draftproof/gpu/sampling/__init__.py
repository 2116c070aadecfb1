"""How are tokens chosen? What a request may ask, the target distribution, and the verification of drafts."""

from draftproof.gpu.sampling.parameters import ParameterError, SamplingParameters
from draftproof.gpu.sampling.rows import SamplingRows, build_rows
from draftproof.gpu.sampling.verification import Drafts, Verified, verify

__all__ = [
    "Drafts",
    "ParameterError",
    "SamplingParameters",
    "SamplingRows",
    "Verified",
    "build_rows",
    "verify",
]
