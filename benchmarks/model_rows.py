"""The kernels' sizes in ten published language and vision models and two convolutional nets: ``rows`` makes them of ``model_shapes.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilescope_kernels.spec import BACKWARD, FORWARD, STEP

SHAPES = json.loads(Path(__file__).with_name("model_shapes.json").read_text())
_TOKENS = SHAPES["tokens"]
_MODELS: dict[str, dict[str, Any]] = SHAPES["models"]
#: Models whose products are also timed with quantized operands.
_QUANTIZED = ("Llama-3.1-8B", "Llama-3.1-70B")
#: Tokens of a training step.
_TRAINED = 4096
#: The longest sequences of models that have no rotary positions.
_LONGEST = {"GPT-2": 1024, "GPT-2-XL": 1024, "BERT-large": 512}

#: By kernel: its peers, and the family of the table.
PEERS = {
    "matmul": ("eager", "16-bit products"),
    "fp8_matmul": ("cublas", "FP8 products"),
    "fp8_matmul_rows": ("cublas", "FP8 products"),
    "fp8_matmul_blocks": ("cublas", "FP8 products"),
    "int8_matmul": ("cublas", "INT8 products"),
    "int8_matmul_rows": ("cublas", "INT8 products"),
    "w8a16_matmul": ("cublas", "INT8 weights"),
    "lora_linear": ("eager compile", "LoRA"),
    "layer_norm_linear": ("eager compile", "norms and linear layers"),
    "fp8_tensor": ("compile", "quantization"),
    "fp8_rows": ("compile", "quantization"),
    "fp8_blocks": ("compile", "quantization"),
    "fp8_tiles": ("compile", "quantization"),
    "int8_rows": ("compile", "quantization"),
    "int8_dequantize": ("compile", "quantization"),
    "fp8_dequantize": ("compile", "quantization"),
    "nf4_dequantize": ("compile bitsandbytes", "quantization"),
    "attention": ("cudnn fa2 fa3 fa4", "attention"),
    "causal_attention": ("cudnn fa2 fa3 fa4", "attention"),
    "ragged_attention": ("cudnn fa2", "attention"),
    "paged_attention": ("aten compile", "decoding"),
    "softmax": ("aten liger compile quack", "softmax"),
    "rms_norm": ("aten liger compile quack", "norms"),
    "add_rms_norm": ("liger compile quack", "norms"),
    "layer_norm": ("aten liger compile quack", "norms"),
    "group_norm": ("aten compile", "norms"),
    "cross_entropy": ("aten liger quack", "losses"),
    "linear_cross_entropy": ("liger cce", "losses"),
    "rope": ("liger compile", "elementwise"),
    "swiglu": ("liger compile", "elementwise"),
    "geglu": ("liger compile", "elementwise"),
    "gelu": ("aten compile", "elementwise"),
    "dropout": ("eager", "elementwise"),
    "vector_add": ("eager", "elementwise"),
    "conv2d": ("eager compile", "convolution"),
}


@dataclass
class Row:
    """A kernel at a size. ``given`` are inputs beside the workload's own; ``models`` have the size."""

    kernel: str
    workload: str
    direction: str = FORWARD
    given: Mapping[str, int] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Names the row in tables and in stored results."""
        return " ".join((self.kernel, self.workload, self.direction, *(f"{k}={v}" for k, v in self.given.items())))

    @property
    def family(self) -> str:
        """The family of the table."""
        decodes = self.kernel == "attention" and self.workload.split("x")[3] == "1"
        return "decoding" if decodes else PEERS[self.kernel][1]


def rows() -> list[Row]:
    """Every kernel at every size, each once."""
    found: dict[str, Row] = {}
    for name, row in _every():
        found.setdefault(row.id, row).models.append(name)
    return list(found.values())


def _row(kernel: str, *extents: int, direction: str = FORWARD, dtype: str = "bf16", **given: int) -> Row:
    return Row(kernel, "x".join(map(str, extents)) + f"-{dtype}", direction, given)


def _every() -> Iterator[tuple[str, Row]]:
    for name, model in _MODELS.items():
        made = (_blocks_of_fp8(model) if "fp8_blocks" in model else _layers(name, model), _norms(model), _gates(model))
        heads = () if "fp8_blocks" in model else (_attention(name, model), _decoding(model))
        for each in (*made, *heads, _vocabulary(name, model)):
            yield from ((name, row) for row in each)
    for name, shapes in SHAPES["convolutions"].items():
        if name != "columns":
            batch = int(name.split("batch ")[1].split(",")[0])
            yield from ((name.split(",")[0], row) for row in _convolutions(batch, shapes))


def _tokens(model: Mapping[str, Any]) -> list[int]:
    """Numbers of tokens: for vision, those of the batch."""
    return [model["batch"] * model["sequence"]] if "sequence" in model else _TOKENS


def _linear(model: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(columns out, columns in) of a layer's linear parts: queries, keys and values together, output, gate and up together, down."""
    hidden, inner, width = (
        model["hidden"],
        model["intermediate"],
        model["heads"] * model["head_dim"] if "head_dim" in model else 0,
    )
    both = width + 2 * model.get("kv_heads", model["heads"]) * (width // model["heads"])
    up = 2 * inner if _gated(model) else inner
    return [(both, hidden), (hidden, width), (up, hidden), (hidden, inner)]


def _gated(model: Mapping[str, Any]) -> bool:
    return model["hidden"] * 4 != model["intermediate"] or "window" in model


def _layers(name: str, model: Mapping[str, Any]) -> Iterator[Row]:
    for n, k in _linear(model):
        for m in _tokens(model):
            yield _row("matmul", m, n, k)
        yield _row("matmul", _TRAINED, n, k, direction=BACKWARD)
        if name in _QUANTIZED:
            yield from _quantized(n, k)
        if name == _QUANTIZED[0]:
            yield from _adapted(n, k)
    if name in _QUANTIZED:
        for m in (16, 2048, 16384):
            for kernel in ("fp8_tensor", "fp8_rows", "int8_rows"):
                yield _row(kernel, m, model["hidden"])
    if name in ("GPT-2", "BERT-large"):
        for m in (16, 2048):
            yield _row("layer_norm_linear", m, 3 * model["hidden"], model["hidden"])
        yield _row("dropout", _TRAINED * model["hidden"])
        yield _row("vector_add", _TRAINED * model["hidden"])


def _quantized(n: int, k: int) -> Iterator[Row]:
    """A linear layer with operands or weights of 8 bits."""
    for m in (1, 16, 128, 512, 2048, 8192):
        yield _row("fp8_matmul", m, n, k, dtype="fp8")
        if m in (16, 512, 8192):
            yield _row("fp8_matmul_rows", m, n, k, dtype="fp8")
        if m <= 2048:
            yield _row("w8a16_matmul", m, n, k)


def _adapted(n: int, k: int) -> Iterator[Row]:
    """A linear layer in INT8, with a LoRA adapter, and its quantized weight."""
    for m in (16, 128, 2048):
        yield _row("int8_matmul", m, n, k, dtype="int8")
        yield _row("int8_matmul_rows", m, n, k, dtype="int8")
    yield _row("lora_linear", 16, n, k, 16)
    for direction in (FORWARD, BACKWARD):
        yield _row("lora_linear", 2048, n, k, 16, direction=direction)
    for kernel in ("nf4_dequantize", "int8_dequantize", "fp8_dequantize"):
        yield _row(kernel, n, k)


def _blocks_of_fp8(model: Mapping[str, Any]) -> Iterator[Row]:
    """DeepSeek-V3: products of 128x128 blocks, dense and of an expert, and their quantization."""
    hidden, inner, expert = model["hidden"], model["intermediate"], model["expert_intermediate"]
    for m in (16, 128, 512, 2048, 8192):
        for n, k in ((2 * inner, hidden), (hidden, inner), (2 * expert, hidden), (hidden, expert)):
            yield _row("fp8_matmul_blocks", m, n, k, dtype="fp8")
    for m in (16, 2048, 16384):
        yield _row("fp8_blocks", m, hidden)
    yield _row("fp8_tiles", hidden, inner)


def _norms(model: Mapping[str, Any]) -> Iterator[Row]:
    kernels = ("rms_norm", "add_rms_norm") if _gated(model) else ("layer_norm",)
    for kernel in kernels:
        for rows in _tokens(model):
            yield _row(kernel, rows, model["hidden"])
        for rows in (2048, 16384):
            yield _row(kernel, rows, model["hidden"], direction=BACKWARD)


def _gates(model: Mapping[str, Any]) -> Iterator[Row]:
    inner = model["intermediate"]
    for rows in _tokens(model):
        if not _gated(model):
            yield _row("gelu", rows * inner)
        else:
            yield _row("geglu" if "window" in model else "swiglu", rows, inner)
    if _gated(model):
        yield _row("geglu" if "window" in model else "swiglu", _TRAINED, inner, direction=BACKWARD)
    else:
        yield _row("gelu", _TRAINED * inner, direction=BACKWARD)


def _attention(name: str, model: Mapping[str, Any]) -> Iterator[Row]:
    heads, columns = (model["kv_heads"], model["heads"] // model["kv_heads"]), model["head_dim"]
    kernel = "causal_attention" if model.get("causal", True) else "attention"
    longest = _LONGEST.get(name, 16384)
    shapes = [(1, 512), (1, 2048), (8, 2048), (4, 4096), (1, 16384)]
    if "sequence" in model:
        shapes = [(model["batch"], model["sequence"])]
    elif name in _LONGEST:
        shapes = [(1, longest), (16384 // longest, longest)]
    for batch, length in shapes:
        yield _row(kernel, batch, *heads, length, length, columns)
        yield _row(kernel, batch, *heads, length, length, columns, direction=BACKWARD)
    if name in ("Llama-3.1-8B", "GPT-2-XL"):
        for direction in (FORWARD, BACKWARD):
            yield _row("ragged_attention", 16, *heads, min(2048, longest), columns, direction=direction)
    if kernel == "causal_attention" and name not in _LONGEST:
        for tokens in (16, 512, _TRAINED, 16384):
            yield _row("rope", 1, model["heads"], heads[0], tokens, columns)
        yield _row("rope", 1, model["heads"], heads[0], _TRAINED, columns, direction=BACKWARD)


def _decoding(model: Mapping[str, Any]) -> Iterator[Row]:
    if not model.get("causal", True):
        return
    heads, columns = (model["kv_heads"], model["heads"] // model["kv_heads"]), model["head_dim"]
    for batch, keys in ((1, 1024), (1, 8192), (16, 2048), (64, 8192), (128, 1024)):
        if keys <= 1024 or heads[1] > 1:
            yield _row("attention", batch, *heads, 1, keys, columns)
    if heads[1] > 1:
        for batch, keys in ((1, 8192), (16, 2048), (64, 4096)):
            yield _row("paged_attention", batch, *heads, 1, keys, 16, columns)


def _vocabulary(name: str, model: Mapping[str, Any]) -> Iterator[Row]:
    if "vocabulary" not in model:
        return
    words, hidden = model["vocabulary"], model["hidden"]
    for rows in (1, 16, 128, 2048):
        yield _row("matmul", rows, words, hidden)
    for rows in (16, 128, 2048):
        yield _row("softmax", rows, words)
    yield _row("softmax", 2048, words, direction=BACKWARD)
    for rows in (2048, 8192):
        for direction in (FORWARD, STEP):
            yield _row("cross_entropy", rows, words, direction=direction)
    if name in ("Llama-3.1-8B", "Qwen2.5-7B", "GPT-2"):
        for direction in (FORWARD, STEP):
            yield _row("linear_cross_entropy", _TRAINED, hidden, words, direction=direction)


def _convolutions(batch: int, shapes: list[list[int]]) -> Iterator[Row]:
    for channels, side, filters, kernel, stride in shapes:
        more = {"stride": stride} if stride > 1 else {}
        yield _row("conv2d", batch, channels, side, side, filters, kernel, **more)
        if batch == 2 and stride == 1 and channels % 32 == 0:
            yield _row("group_norm", batch, 32, channels // 32, side * side)


#: By variant that the library dropped, because no model gains by it: rows of other sizes that it served.
DROPPED = {
    "products: clusters": ("matmul 384x384x12288-bf16", "matmul 512x512x8192-bf16"),
    "products: pairs of SMs in parts": ("matmul 1000x1000x10000-bf16", "matmul 1000x1000x4000-bf16"),
    "products: pairs of SMs in other tiles": ("matmul 1504x1504x1504-bf16", "matmul 5000x1000x5000-bf16"),
    "LayerNorm: rows in shared memory": ("layer_norm 8192x16384-bf16 backward",),
    "norms: rings of wide rows": tuple(
        f"{norm} 2048x65536-bf16 backward" for norm in ("add_rms_norm", "layer_norm", "rms_norm")
    ),
    "INT8 weights: pairs of SMs": ("w8a16_matmul 384x4096x4096-bf16", "w8a16_matmul 320x4096x14336-bf16"),
    "LayerNorm behind the product": (
        "layer_norm_linear 16384x4096x4096-bf16",
        "layer_norm_linear 32768x1024x4096-bf16",
    ),
    "attention: gradient of 65 to 96 columns": (
        "causal_attention 2x16x1x2048x2048x96-bf16 backward",
        "attention 2x16x1x2048x2048x80-bf16 backward",
    ),
}


def dropped() -> list[Row]:
    """The rows of ``DROPPED``."""
    parts = [(name, text.split()) for name, texts in DROPPED.items() for text in texts]
    return [Row(kernel, size, *direction, models=[name]) for name, (kernel, size, *direction) in parts]
