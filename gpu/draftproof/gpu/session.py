"""How does a conversation go on without being sent again? In a session: chunks of input, each answered.

```python
with llm.session(SamplingParameters(temperature=0, max_tokens=40)) as session:
    session.append("The first chunk")
    print(session.turn().text)
    session.append(" and the second", SamplingParameters(temperature=0.8, max_tokens=10))
    print(session.turn().text)
```

Several chunks may be appended before the first is answered: each waits for the turn before it. What was
said stays known, but for the last token of each turn, which has no KV: whoever wants it in the context says
it again with the next chunk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from draftproof.gpu.prompts import Prompt
from draftproof.gpu.runner.requests import RequestOutput, RequestResult
from draftproof.gpu.sampling.parameters import ParameterError, SamplingParameters
from draftproof.impl.scheduler import RequestError

if TYPE_CHECKING:
    from draftproof.gpu.llm import LLM


class Session:
    """One of an LLM's; made by `LLM.session`. One thread at a time may use it."""

    def __init__(self, llm: LLM, request_id: str, parameters: SamplingParameters) -> None:
        self._llm, self.request_id, self._parameters = llm, request_id, parameters
        self._results: deque[RequestResult] = deque()
        self._problem: BaseException | None = None
        self._num_waiting = 0
        """Chunks appended that have not been answered."""
        self.is_open, self._has_begun = True, False

    def append(self, prompt: Prompt, parameters: SamplingParameters | None = None) -> None:
        """The next chunk; `parameters` are those of its answer and of later ones.

        Raises RequestError for an empty chunk, one that does not fit, or a session that has been closed.
        """
        if not self.is_open:
            raise RequestError("this session has been closed: open another one")
        if self._problem is not None:
            raise self._problem
        if parameters is not None and not isinstance(parameters, SamplingParameters):
            raise ParameterError(f"a turn's parameters must be SamplingParameters, got {parameters!r:.80}")
        chosen = self._parameters if parameters is None else parameters
        (self._llm.append if self._has_begun else self._llm.begin)(self, prompt, chosen)
        self._has_begun, self._parameters = True, chosen
        self._num_waiting += 1

    def turn(self) -> RequestResult:
        """The answer to the oldest chunk that has not been answered; works until it is there.

        Its `num_cached_tokens` is that of the session's first prompt. A session that has become too long for
        a waiting chunk ends, and the chunk's answer says so. Raises RequestError if no chunk waits.
        """
        if self._num_waiting == 0:
            raise RequestError("no chunk waits for an answer: append one first")
        while not self._results:
            if self._problem is not None:
                raise self._problem
            self._llm.step_for(self)
        self._num_waiting -= 1
        result = self._results.popleft()
        if result.error is not None:
            self.is_open = False
        return result

    async def next_turn(self) -> RequestResult:
        """The same, from an event loop."""
        return await asyncio.to_thread(self.turn)

    def close(self) -> None:
        """No more chunks will come. Those appended are still answered: ask `turn` for them."""
        if self.is_open and self._has_begun:
            self._llm.end(self)
        self.is_open = False

    def abort(self) -> RequestResult | None:
        """The session ends now, in the middle of a turn or between two; what the turn had said so far."""
        self.is_open, self._num_waiting = False, 0
        self._results.clear()
        return self._llm.abort(self.request_id)

    def take(self, output: RequestOutput | BaseException) -> None:
        """What a step brought; called by the LLM."""
        if isinstance(output, BaseException):
            self._problem = output
        elif output.result is not None:
            self._results.append(output.result)
            if output.result.finish_reason == "abort":  # by its id: what waits will not be answered
                self.is_open = False
                self._num_waiting = min(self._num_waiting, len(self._results))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
