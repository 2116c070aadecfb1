"""Which models run? Decoder-only transformers of the Llama, Qwen2 and Qwen3 families."""

from __future__ import annotations
