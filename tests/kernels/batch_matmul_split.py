"""The matrix product whose last tiles are cut along K, in Triton's interpreter.

fp16, which descriptors serve and the interpreter computes rightly.
"""

from unittest import mock

import torch
from interpreted import close, draw, poisoned
from tilescope_kernels import matmul
from tilescope_kernels.matrix_products import split_k as module


def plan(m=32, n=32, k=16, splits=1, scratch=0):
    tiles = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 2, "SPLITS": splits, "SCRATCH": scratch}
    return {**tiles, "num_warps": 4, "num_stages": 2}


def product(a, b, chosen, programs=4, turned=False):
    c = (
        torch.empty(b.shape[1], a.shape[0], dtype=a.dtype).T
        if turned
        else torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    )
    with mock.patch.object(module, "multiprocessors", lambda _: programs):
        module.writer(a, b, c, chosen)(a, b, c)
    close(c, a.double() @ b.double(), 1e-3)
    return c


def check_whole_tiles_parts_and_both():
    with poisoned():
        for programs, splits in ((1, 2), (4, 1), (4, 3), (7, 2), (100, 8)):
            product(draw(104, 136).half(), draw(136, 72, seed=1).half(), plan(splits=splits), programs)


def check_rows_that_start_anywhere_are_copied():
    a, b = draw(67, 141).half(), draw(141, 75, seed=1).half()
    turned_a, turned_b = a.T.contiguous().T, b.T.contiguous().T
    with poisoned():
        for one, other, splits, scratch in (
            (a, b, 1, 0), (a, turned_b, 3, 0), (turned_a, b, 1, 1), (turned_a, turned_b, 3, 1), (a, b, 3, 1)
        ):  # fmt: skip
            product(one, other, plan(splits=splits, scratch=scratch))
    wide = draw(150, 300).half()
    product(wide[1:68, 3:144], wide[:141, 5:80], plan(splits=2))
    product(wide[:67, ::2][:, :141], wide[:141, ::3][:, :75], plan(splits=2))
    product(wide[:1, :141].expand(67, 141), b, plan(splits=2))


def check_a_column_major_result():
    for m, n in ((96, 16), (104, 5), (40, 1), (1, 33)):  # with and without a descriptor
        for splits in (1, 3):
            a, b = draw(m, 136).half(), draw(n, 136, seed=1).half().T
            with poisoned():
                product(a, b, plan(n=16, splits=splits), turned=True)


def check_the_public_function_comes_here_with_gradients():
    with mock.patch.object(module, "plan", lambda a, b: plan(splits=2)):
        a, b = (draw(*shape, seed=7).half().requires_grad_() for shape in ((40, 37), (37, 50)))
        twins = [tensor.detach().double().requires_grad_() for tensor in (a, b)]
        with mock.patch.object(module, "multiprocessors", lambda _: 4):
            close(matmul(a, b), twins[0] @ twins[1], 1e-3)
            found = torch.autograd.grad(matmul(a, b).sum(), (a, b))
        for one, other in zip(found, torch.autograd.grad((twins[0] @ twins[1]).sum(), twins), strict=True):
            close(one, other, 1e-3)
    config = {**plan(), "TMA": 0, "SPECIALIZE": 0}
    del config["SPLITS"], config["SCRATCH"]
    with mock.patch.object(module, "writer", side_effect=AssertionError):
        close(matmul(a, b, config=config), a.double() @ b.double(), 1e-3)
