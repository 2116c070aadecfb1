"""The scheduler: continuous batching, speculative decoding and a prefix cache on the proven accounting."""

from draftproof.impl.scheduler.batch import Batch
from draftproof.impl.scheduler.client import RequestOutput, Statistics, metrics_of, outputs, statistics
from draftproof.impl.scheduler.config import ConfigError, KVGroup, SchedulerConfig
from draftproof.impl.scheduler.errors import OutcomeError, RequestError, StepError
from draftproof.impl.scheduler.scheduler import Scheduler

__all__ = [
    "Batch",
    "ConfigError",
    "KVGroup",
    "OutcomeError",
    "RequestError",
    "RequestOutput",
    "Scheduler",
    "SchedulerConfig",
    "Statistics",
    "StepError",
    "metrics_of",
    "outputs",
    "statistics",
]
