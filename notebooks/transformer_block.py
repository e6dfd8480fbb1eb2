"""A small Llama twice, in plain PyTorch and with Tilescope's modules dropped in, and a training run of both.

    python notebooks/transformer_block.py

Parameters have one set of names, those of Hugging Face's Llama, so either model loads the other's ``state_dict``. Without a
GPU, ``TILESCOPE_USE_TRITON=0`` routes Tilescope's functions to PyTorch.

To compute in 16 bits, convert the model (``.bfloat16()``) instead of using ``torch.autocast``: all tensors of a call have one
dtype, and autocast would leave the residual stream in fp32. ``train`` keeps the fp32 weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tilescope_kernels import (
    AddRMSNorm,
    LinearCrossEntropy,
    RMSNorm,
    SwiGLUMLP,
    cross_entropy,
    rope,
    scaled_dot_product_attention,
)
from torch import nn


@dataclass(frozen=True)
class Shape:
    """A model's extents: ``columns`` is the width of the residual stream, ``hidden`` that of the MLP."""

    classes: int = 512
    columns: int = 128
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    layers: int = 2
    eps: float = 1e-6

    @property
    def head_columns(self) -> int:
        """Elements of one head."""
        return self.columns // self.heads


def tables(tokens: int, columns: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the rotary angles of positions 0, 1, ..., each (1, tokens, columns) in fp32."""
    frequency = 10000.0 ** (-torch.arange(0, columns, 2, dtype=torch.float32, device=device) / columns)
    angles = torch.arange(tokens, device=device)[:, None] * frequency
    angles = torch.cat((angles, angles), dim=-1)[None]
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """Grouped-query attention to the tokens so far, with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.columns = shape.head_columns
        self.q_proj = nn.Linear(shape.columns, shape.heads * self.columns, bias=False)
        self.k_proj = nn.Linear(shape.columns, shape.kv_heads * self.columns, bias=False)
        self.v_proj = nn.Linear(shape.columns, shape.kv_heads * self.columns, bias=False)
        self.o_proj = nn.Linear(shape.heads * self.columns, shape.columns, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``x`` (batch, tokens, columns) to the same shape."""
        q, k, v = (self.heads_first(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.rotate(q, k, cos, sin)
        return self.o_proj(self.attend(q, k, v).transpose(1, 2).reshape(x.shape))

    def heads_first(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, heads * columns of a head) to (batch, heads, tokens, columns of a head)."""
        return x.unflatten(-1, (-1, self.columns)).transpose(1, 2)

    def rotate(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both turned by their positions' angles."""

        def turned(x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, dim=-1)
            return (x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]).to(x.dtype)

        return turned(q), turned(k)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention; each head of ``k`` and ``v`` serves several of ``q``."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class TilescopeAttention(Attention):
    """The same with one kernel for both rotations and one for attention."""

    def rotate(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return rope(q, k, cos, sin)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class MLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, columns: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(columns, hidden, bias=False)
        self.up_proj = nn.Linear(columns, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, columns, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` (..., columns) to the same shape."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One decoder layer in plain PyTorch."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.columns, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.columns, shape.eps)
        self.mlp = MLP(shape.columns, shape.hidden)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``x`` (batch, tokens, columns) to the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class TilescopeBlock(nn.Module):
    """The same decoder layer with Tilescope's modules."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.columns, shape.eps)
        self.self_attn = TilescopeAttention(shape)
        self.post_attention_layernorm = AddRMSNorm(shape.columns, shape.eps)
        self.mlp = SwiGLUMLP(shape.columns, shape.hidden)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``x`` (batch, tokens, columns) to the same shape."""
        attended = self.self_attn(self.input_layernorm(x), cos, sin)
        y, x = self.post_attention_layernorm(attended, x)
        return x + self.mlp(y)


class Decoder(nn.Module):
    """A language model in plain PyTorch: tokens and the tokens that follow them to the mean loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_columns = shape.head_columns
        self.embed_tokens = nn.Embedding(shape.classes, shape.columns)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.columns, shape.eps)
        self.lm_head = nn.Linear(shape.columns, shape.classes, bias=False)

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """``tokens`` and ``following`` (batch, tokens) of int64 to a scalar."""
        x = self.embed_tokens(tokens)
        cos, sin = tables(tokens.shape[1], self.head_columns, tokens.device)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.loss(self.norm(x), following)

    def loss(self, x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Logits, in fp32 where they were rounded to 16 bits, and their cross-entropy."""
        logits = self.lm_head(x).flatten(0, -2)
        return F.cross_entropy(logits.float() if logits.element_size() == 2 else logits, following.flatten())


class TilescopeDecoder(Decoder):
    """The same language model with Tilescope's modules; ``joined`` never holds the logits of all tokens."""

    def __init__(self, shape: Shape, joined: bool = True) -> None:
        super().__init__(shape)
        self.joined = joined
        self.layers = nn.ModuleList(TilescopeBlock(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.columns, shape.eps)
        self.lm_head = LinearCrossEntropy(shape.columns, shape.classes, bias=False)

    def loss(self, x: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        if self.joined:
            return self.lm_head(x, following)
        return cross_entropy(F.linear(x, self.lm_head.weight).flatten(0, -2), following.flatten())


def text(shape: Shape, batch: int, tokens: int, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Seeded tokens that can be learnt, and what follows them: each is the one before plus a step of 1 to 3."""
    numbers = torch.Generator().manual_seed(seed)
    first = torch.randint(0, shape.classes, (batch, 1), generator=numbers)
    steps = torch.randint(1, 4, (batch, tokens), generator=numbers)
    drawn = torch.cat((first, first + steps.cumsum(1)), 1).remainder(shape.classes).to(device)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def train(
    model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], steps: int, rate: float = 3e-3
) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
    """AdamW on one batch: yields the loss of each step and the weights that it belongs to.

    Weights of 16 bits are copies of fp32 ones, which the optimiser keeps: a step of it is less than their rounding.
    """
    weights = list(model.parameters())
    kept = [weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True) for weight in weights]
    optimiser = torch.optim.AdamW(kept, lr=rate)
    for _ in range(steps):
        loss = model(*data)
        gradients = torch.autograd.grad(loss, weights)
        yield loss.detach(), kept
        for one, gradient in zip(kept, gradients, strict=True):
            one.grad = gradient.to(one.dtype)
        optimiser.step()
        with torch.no_grad():
            for weight, one in zip(weights, kept, strict=True):
                weight.copy_(one)


def main() -> None:
    """Trains both from the same weights and prints their losses side by side."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = Shape()
    torch.manual_seed(0)
    plain, tilescope = Decoder(shape).to(device), TilescopeDecoder(shape).to(device)
    tilescope.load_state_dict(plain.state_dict())
    data = text(shape, batch=4, tokens=64, seed=0, device=device)
    runs = zip(train(plain, data, 50), train(tilescope, data, 50), strict=True)
    for step, ((one, _), (other, _)) in enumerate(runs):
        if step % 7 == 0:
            print(f"step {step:2}: loss {one:.6f} in plain PyTorch, {other:.6f} with Tilescope")


if __name__ == "__main__":
    main()
