"""How does a user generate text? `LLM("smollm2", speculate="ngram:3").generate(prompts, parameters)`.

```python
from draftproof.gpu import LLM, SamplingParameters

llm = LLM("smollm2", speculate="ngram:3", asynchronous=True)
for result in llm.generate(["Once upon a time"], SamplingParameters(temperature=0, max_tokens=32)):
    print(result.text, result.num_accepted_tokens)
```

Prompts are texts, or token ids. Speculation changes how many steps they take, not what comes of them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from draftproof.gpu.errors import check_integer
from draftproof.gpu.options import KV_CACHE_BYTES, check_switches, parameters_of, scheduler_config
from draftproof.gpu.output_text import OutputText
from draftproof.gpu.prompts import Prompt, token_ids_of
from draftproof.gpu.recording import RecordingEngine
from draftproof.gpu.runner.engine import Engine
from draftproof.gpu.runner.model_part import About, ModelPart, ModelSetup
from draftproof.gpu.runner.requests import Request, RequestOutput, RequestResult, Turn
from draftproof.gpu.sampling.parameters import ParameterError, SamplingParameters
from draftproof.gpu.session import Session
from draftproof.impl.contracts import DEBUG
from draftproof.impl.progress_line import ProgressCount
from draftproof.impl.scheduler import RequestError, Scheduler
from draftproof.impl.scheduler.layout import NUM_IDLE
from draftproof.spec.decision_inputs import Metrics

NUM_PROMPTS_WITH_PROGRESS = 4
"""A progress line is shown, on a terminal, from so many prompts on."""

NO_METRICS = Metrics(*[0] * len(Metrics._fields))
"""Of a request that has never started."""

Sink = Callable[[RequestOutput | BaseException], None]


class LLM:
    """A model ready to generate. Several threads and event loops may use one at the same time."""

    def __init__(
        self,
        model: Any,
        *,
        speculate: Any = None,
        asynchronous: bool = False,
        dtype: Any = None,
        device: Any = None,
        seed: int = 0,
        max_model_len: int | None = None,
        num_blocks: int | None = None,
        kv_cache_bytes: int = KV_CACHE_BYTES,
        block_size: int = 16,
        recurrent_block_size: int = 0,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        long_prefill_token_threshold: int = 0,
        enable_prefix_caching: bool = True,
        attention_backend: Any = None,
        cuda_graphs: bool = True,
        runner_process: bool = False,
        compiled: bool | None = None,
        debug: bool = DEBUG,
    ) -> None:
        """The options have vLLM's names where it has them. Counts are tokens, but for blocks.

        `model`: "smollm2", a folder of safetensors or a GGUF file, "random:qwen3" and the like, a name on the
        Hub, or a Decoder. `speculate`: None, "ngram:K", "null:K", "draft:MODEL:K", "eagle:FOLDER:K", or a
        Drafter. `asynchronous`: launch a step before the last one has been read. `dtype`: float32 on a CPU
        and bfloat16 on CUDA if nothing is said. `seed`: of random weights. `max_model_len`: None for all the
        positions that the model has. `num_blocks`: of the KV cache; None for what `kv_cache_bytes` hold.
        `recurrent_block_size`: tokens between two kept states of a model with recurrent layers, a multiple of
        `block_size`; 0 for eight of them. `attention_backend`: "gather", "triton", or None for the best.
        `cuda_graphs`: whether decoding steps run as captured graphs; only on CUDA, and not with `debug`.
        `runner_process`: whether the model runs in a process of its own; `model` is a name then, or a
        function that makes a Decoder there. `compiled`: whether the scheduler is; None for the usual.
        `debug`: whether the KV canary looks on; by default with DRAFTPROOF_DEBUG=1.

        Raises ModelError for an option that cannot be, before memory is taken where that is possible.
        """
        check_switches(
            asynchronous=asynchronous, cuda_graphs=cuda_graphs, runner_process=runner_process, debug=debug
        )
        check_integer("block_size", block_size, 2**20)
        if recurrent_block_size != 0:
            check_integer("recurrent_block_size", recurrent_block_size, 2**20)
        setup = ModelSetup(model, dtype, device, seed, speculate, attention_backend, debug, cuda_graphs)
        self._part: Any
        if runner_process:
            from draftproof.gpu.runner.process import ProcessPart

            self._part = ProcessPart(setup, block_size)
        else:
            self._part = ModelPart(setup, block_size)
        try:
            self.tokenizer = self._part.tokenizer
            about: About = self._part.about
            self.shape = about.shape
            self.config = scheduler_config(
                about,
                max_model_len=max_model_len,
                num_blocks=num_blocks,
                kv_cache_bytes=kv_cache_bytes,
                block_size=block_size,
                recurrent_block_size=recurrent_block_size or 8 * block_size,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                long_prefill_token_threshold=long_prefill_token_threshold,
                enable_prefix_caching=enable_prefix_caching,
                asynchronous=asynchronous,
            )
            runner = self._part.runner(self.config)
            scheduler = Scheduler(self.config, **({} if compiled is None else {"compiled": compiled}))
        except BaseException:
            self.close()
            raise
        self.engine: Engine = (RecordingEngine if debug else Engine)(
            runner,
            self.config,
            eos_token_ids=about.shape.eos_token_ids,
            scheduler=scheduler,
            debug=debug,
        )
        self._lock = threading.RLock()
        self._turnstile = threading.Lock()
        """Held while one waits for the lock from outside: who steps on and on comes behind it."""
        self._waiting: deque[Request] = deque()
        self._sinks: dict[str, Sink] = {}
        self._num_requests = 0
        self._pump: threading.Thread | None = None

    # ---- generate ----

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        parameters: SamplingParameters | Sequence[SamplingParameters] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestResult]:
        """One result for each prompt, in their order. One set of parameters serves all prompts.

        Prompts are texts or lists of token ids; one may be given alone. Everything is checked before anything
        runs. Raises RequestError for a prompt that cannot be served, ParameterError for parameters that
        cannot be. A request that fails alone says so in its result; whatever else goes wrong ends the whole
        call, and leaves the LLM as usable as before. `progress`: a line on the terminal, if stderr is one.
        """
        requests = self._checked(prompts, parameters)
        results: dict[str, RequestResult] = {}
        problems: list[BaseException] = []

        def take(output: RequestOutput | BaseException) -> None:
            if isinstance(output, BaseException):
                problems.append(output)
            elif output.result is not None:
                results[output.request_id] = output.result

        is_shown = progress and len(requests) >= NUM_PROMPTS_WITH_PROGRESS
        with ProgressCount("draftproof: generating", len(requests) if is_shown else 0) as shown:
            try:
                for request in requests:
                    self._submit(request, take)
                while len(results) < len(requests) and not problems:
                    with self._held():
                        self._step()
                    shown.at(len(results))
            finally:
                for request in requests:
                    if request.request_id not in results:
                        self.abort(request.request_id)
        if problems:
            raise problems[0]
        return [results[request.request_id] for request in requests]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        parameters: SamplingParameters | None = None,
    ) -> RequestResult:
        """The answer to a conversation, by the model's own chat template. Raises as `generate`."""
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer, and so no chat template: give token ids")
        return self.generate([self.tokenizer.encode_chat(messages)], parameters)[0]

    async def stream(
        self, prompt: Prompt, parameters: SamplingParameters | None = None
    ) -> AsyncIterator[RequestOutput]:
        """A request's outputs as they come; the last one carries the result. Leaving early aborts it."""
        request = self._checked([prompt], parameters)[0]
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[RequestOutput | BaseException] = asyncio.Queue()

        def take(output: RequestOutput | BaseException) -> None:
            with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                loop.call_soon_threadsafe(outputs.put_nowait, output)

        self._submit(request, take)
        self._start_pump()
        is_over = False
        try:
            while not is_over:
                output = await outputs.get()
                if isinstance(output, BaseException):
                    raise output
                is_over = output.result is not None
                yield output
        finally:
            if not is_over:
                # Not on the event loop: a step may be running.
                await asyncio.shield(asyncio.to_thread(self.abort, request.request_id))

    def session(self, parameters: SamplingParameters | None = None) -> Session:
        """A conversation whose input comes in chunks, each answered in its turn; see `Session`."""
        if parameters is not None and not isinstance(parameters, SamplingParameters):
            raise ParameterError(f"a session's parameters must be SamplingParameters, got {parameters!r:.80}")
        return Session(self, self._new_id(), parameters or SamplingParameters())

    def abort(self, request_id: str) -> RequestResult | None:
        """The request leaves now; its result, or None for one that is not known or has finished."""
        with self._held():
            sink, result = self._sinks.pop(request_id, None), self._aborted(request_id)
            if sink is not None and result is not None:  # whoever waits for it is told
                sink(RequestOutput(request_id, (), "", (), result))
            return result

    def _aborted(self, request_id: str) -> RequestResult | None:
        for request in self._waiting:
            if request.request_id == request_id:
                self._waiting.remove(request)
                return request.result("abort", NO_METRICS)
        return self.engine.abort(request_id) if request_id in self.engine.scheduler.rows else None

    def close(self) -> None:
        """Give back what this holds: a process of its own ends. Requests must have finished."""
        close = getattr(self._part, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the loop, and who waits for what ----

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The lock, in turn: a thread that steps would else take it again before anybody else has woken.

        Not for somebody who holds it already.
        """
        with self._turnstile:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _submit(self, request: Request, sink: Sink) -> None:
        with self._held():
            self._sinks[request.request_id] = sink
            self._waiting.append(request)

    def _step(self) -> None:
        """One step of the engine; what it brings goes to whom it belongs. Whatever goes wrong is told to all
        who wait, and their requests leave. The lock is held."""
        try:
            while self._waiting and self.engine.scheduler.state.counts[NUM_IDLE] > 0:
                self.engine.add(self._waiting.popleft())
            outputs = self.engine.step()
        except BaseException as problem:
            self._fail(problem)
            if not isinstance(problem, Exception):
                raise
            return
        for output in outputs:
            sink = self._sinks.get(output.request_id)
            if sink is not None:
                sink(output)
        for output in outputs:  # a session goes on after its turn's result
            if output.result is not None and output.request_id not in self.engine.scheduler.rows:
                self._sinks.pop(output.request_id, None)

    def _fail(self, problem: BaseException) -> None:
        sinks = dict(self._sinks)
        self._waiting.clear()
        for request_id in list(self.engine.scheduler.rows):
            self.engine.abort(request_id)
        self._sinks.clear()
        for sink in sinks.values():
            sink(problem)

    def _start_pump(self) -> None:
        """A thread that steps while there is something to do; it ends by itself.

        No daemon: Python would end it by force at its own end, in the middle of torch, which aborts then.
        """
        with self._lock:
            if self._pump is None:
                self._pump = threading.Thread(target=self._run, name="draftproof-steps")
                self._pump.start()

    def _run(self) -> None:
        while True:
            with self._held():
                if not self._waiting and not self.engine.has_work():
                    self._pump = None
                    return
                self._step()

    # ---- requests ----

    def _new_id(self) -> str:
        with self._lock:
            self._num_requests += 1
            return str(self._num_requests - 1)

    def _checked(self, prompts: Any, parameters: Any) -> list[Request]:
        """Requests with their ids. Raises RequestError or ParameterError, naming the prompt."""
        texts = token_ids_of(prompts, self.tokenizer)
        per_prompt = parameters_of(parameters, len(texts))
        requests = []
        for place, (token_ids, one) in enumerate(zip(texts, per_prompt, strict=True)):
            try:
                self.engine.check(token_ids, one)
                requests.append(self._request(token_ids, one))
            except RequestError as problem:
                raise RequestError(f"prompt {place}: {problem}") from problem
            except ParameterError as problem:
                raise ParameterError(f"prompt {place}: {problem}") from problem
        return requests

    def _request(self, token_ids: Sequence[int], parameters: SamplingParameters) -> Request:
        return Request(
            self._new_id(),
            tuple([int(token) for token in token_ids]),
            parameters,
            parameters.seed_of_request(),
            self._output_text(parameters),
        )

    def _output_text(self, parameters: SamplingParameters) -> OutputText | None:
        if self.tokenizer is None:
            if parameters.stop:
                raise ParameterError(
                    "stop strings need text, and this model has no tokenizer: use stop_token_ids"
                )
            return None
        return OutputText(self.tokenizer, parameters.stop, min_tokens=parameters.min_tokens)

    # ---- for sessions ----

    def begin(self, session: Session, prompt: Prompt, parameters: SamplingParameters) -> None:
        """A session's first chunk. Raises RequestError or ParameterError."""
        with self._held():
            turn = self._turn(prompt, parameters)
            request = Request(
                session.request_id, turn.token_ids, parameters, turn.seed, turn.output, is_session=True
            )
            self.engine.add(request)
            self._sinks[session.request_id] = session.take

    def append(self, session: Session, prompt: Prompt, parameters: SamplingParameters) -> None:
        """A session's next chunk. Raises RequestError or ParameterError."""
        with self._held():
            self.engine.append(session.request_id, self._turn(prompt, parameters))

    def _turn(self, prompt: Prompt, parameters: SamplingParameters) -> Turn:
        if parameters.stop:
            raise ParameterError("a session's turns cannot end at stop strings: use stop_token_ids")
        token_ids = tuple([int(token) for token in token_ids_of([prompt], self.tokenizer)[0]])
        output = self._output_text(parameters)
        return Turn(token_ids, parameters, parameters.seed_of_request(), output, time.monotonic())

    def end(self, session: Session) -> None:
        """No more chunks will come; the turn in progress, and those that wait, are answered."""
        with self._held():
            if session.request_id in self.engine.scheduler.rows:
                self.engine.close(session.request_id)
            if session.request_id not in self.engine.scheduler.rows:  # it was between turns
                self._sinks.pop(session.request_id, None)

    def step_for(self, session: Session) -> None:
        """Work on; the session looks whether it has got something."""
        with self._held():
            self._step()
