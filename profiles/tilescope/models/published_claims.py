"""Published claims about a kernel's speed, each with the address of its text.

``about`` means within 10 % of the figure, ``on par`` within 5 %: the texts give no interval.
"""

from __future__ import annotations

from dataclasses import dataclass

FORWARD, STEP = "forward", "forward+backward"

_TUTORIALS = "https://triton-lang.org/main/getting-started/tutorials"
_LIGER = "https://linkedin.github.io/Liger-Kernel/Low-Level-APIs"
_LIGER_PAPER = "https://arxiv.org/abs/2410.10989"


@dataclass(frozen=True)
class Claim:
    """A claim of ``low`` to ``high`` times the speed of the implementation ``over``, for one pass.

    ``said`` is the figure as the text at ``source`` has it, ``title`` the name of the text.
    """

    kernel: str
    said: str
    low: float
    high: float
    source: str
    title: str
    over: str = "eager"
    direction: str = FORWARD


def _about(factor: float) -> tuple[str, float, float]:
    return f"about {factor:g}×", 0.9 * factor, 1.1 * factor


#: The range of the ratio of two times that counts as on par.
PAR = (0.95, 1.05)
_ON_PAR = ("on par", *PAR)

CLAIMS = (
    Claim("softmax", *_about(4), f"{_TUTORIALS}/02-fused-softmax.html", "Triton's tutorial of a fused softmax"),
    Claim("matmul", *_ON_PAR, f"{_TUTORIALS}/03-matrix-multiplication.html", "Triton's tutorial of a matrix product"),
    Claim("rms_norm", *_about(7), _LIGER, "Liger-Kernel's documentation"),
    Claim("cross_entropy", *_about(3), _LIGER, "Liger-Kernel's documentation", direction=STEP),
    Claim("rope", *_about(8), _LIGER_PAPER, "the Liger-Kernel paper, section 4.1"),
    Claim("swiglu", *_ON_PAR, _LIGER_PAPER, "the Liger-Kernel paper, section 4.1"),
    Claim("geglu", *_ON_PAR, _LIGER_PAPER, "the Liger-Kernel paper, section 4.1"),
)


def of(kernel: str, direction: str) -> Claim | None:
    """The published claim about a kernel's pass, or None."""
    return next((claim for claim in CLAIMS if (claim.kernel, claim.direction) == (kernel, direction)), None)
