"""Norms in Triton's interpreter (fp32: it computes bf16 wrongly) against fp64 references."""

import torch
from interpreted import against_reference, close, draw, few_multiprocessors
from tilescope_kernels import layer_norm
from tilescope_kernels._shared.weight_gradients import sum_partials
from tilescope_kernels.norms.group_norm import group_norm_parts_kernel


def check_layer_norm_wide_rows():
    # Over 8192 columns a row is read again or, in 16 bits, held in pieces; over 16384 it is cut into parts.
    against_reference("layer_norm", "3x9000-fp32")
    against_reference("layer_norm", "3x9000-fp16")
    against_reference("layer_norm", "3x12288-fp16")  # 48 elements a thread, in whole pieces, without a mask
    against_reference("layer_norm", "3x16400-fp32")


def check_norms_of_rows_that_are_cut_into_parts():
    # More columns than a program holds; the last part is whole, partial, or starts at no multiple of 16 bytes.
    for kernel, shape in (
        ("layer_norm", "2x40960-fp32"),
        ("rms_norm", "1x66001-fp16"),
        ("add_rms_norm", "2x17000-fp32"),
    ):
        against_reference(kernel, shape)
    # Numbers whose sum fp32 does not hold, and which are far from zero.
    for x in (torch.full((1, 33000), 3e38), draw(2, 33000) + 1000.0):
        close(layer_norm(x, 33000), torch.nn.functional.layer_norm(x.double(), (33000,)), 1e-4)
    leaf = draw(2, 33000, grad=True)  # no weight, so no sums
    twin = leaf.detach().double().requires_grad_()
    layer_norm(leaf, 33000).pow(3).sum().backward()
    torch.nn.functional.layer_norm(twin, (33000,)).pow(3).sum().backward()
    close(leaf.grad, twin.grad, 1e-5)


def check_norms_of_rows_that_do_not_start_at_16_bytes():
    # Odd columns, a multiple of 8 bytes, and fewer rows than begin differently; whole accesses, though no multiple of 16 elements.
    for kernel, shape in (
        ("layer_norm", "19x601-fp16"), ("layer_norm", "9x602-fp32"), ("layer_norm", "3x603-fp32"),
        ("rms_norm", "19x601-fp16"), ("rms_norm", "3x603-fp32"), ("layer_norm", "9x1000-fp16"), ("rms_norm", "9x1000-fp16"),
    ):  # fmt: skip
        against_reference(kernel, shape)
    for x in (draw(4, 601), draw(4, 1202)[:, 1:602], draw(2405)[1:].view(4, 601)):  # the latter two by other kernels
        for weight in (None, draw(601, seed=1)):
            close(
                layer_norm(x, 601, weight),
                torch.nn.functional.layer_norm(x.double(), (601,), None if weight is None else weight.double()),
            )


def check_rows_in_pieces():
    for kernel in ("layer_norm", "rms_norm"):
        against_reference(kernel, "3x2304-fp32")  # the last piece is partial
        against_reference(kernel, "3x5120-fp16", backward=kernel == "rms_norm")  # all are whole
        against_reference(kernel, "2x2052-fp16")  # not in pieces: rows do not start at 16 bytes
        against_reference(kernel, "2x4096-fp16")
        # More than 32 elements a thread, the last piece partial.
        against_reference(kernel, "3x12280-fp16", backward=kernel == "rms_norm")
    # Weights loaded with the row or, of many rows, later; one of them alone.
    for rows in (2, 9):
        with few_multiprocessors():
            x, weight = draw(rows, 2304).half(), draw(2304, seed=1).half()
            for given in ((weight,), (None, weight)):
                wanted = torch.nn.functional.layer_norm(
                    x.double(), (2304,), *(g if g is None else g.double() for g in given)
                )
                close(layer_norm(x, 2304, *given), wanted, 2e-3)
    # Their backward pass, with rows for some programs only.
    with few_multiprocessors():
        for shape in ("11x2304-fp32", "19x260-fp32", "37x128-fp32", "9x4096-fp16"):
            against_reference("rms_norm", shape)
    for shape in ("3x2304-fp32", "3x5120-fp16", "2x2052-fp16", "2x20480-fp16"):
        against_reference("add_rms_norm", shape)
    wide = draw(3, 6000)
    for x in (wide[:, 8:3080], wide[:, 4:2060]):  # rows that start where the matrix's do not
        columns = x.shape[1]
        close(layer_norm(x, columns), torch.nn.functional.layer_norm(x.double(), (columns,)))


def check_partial_sums_of_few_and_many_programs():
    for outputs, programs, columns in ((1, 1, 40), (2, 5, 33), (2, 256, 20), (1, 257, 40), (2, 600, 17), (1, 1030, 16)):
        partial = draw(outputs, programs, columns)
        close(sum_partials(partial, torch.float32), partial.double().sum(1))


def check_layer_norm_large_mean():
    x = draw(4, 512) + 1000.0
    close(layer_norm(x, 512), torch.nn.functional.layer_norm(x.double(), (512,)), 1e-4)
    # Sums of wide rows are of distances from the first element, which may be the one that is far from all others.
    for outlier in (0, 5000):
        x = draw(2, 9000) + 1000.0
        x[:, outlier] = 30000.0
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.float16, 1e-3)):
            rounded = x.to(dtype)
            close(layer_norm(rounded, 9000), torch.nn.functional.layer_norm(rounded.double(), (9000,)), tolerance)


def check_layer_norm_of_numbers_that_are_far_apart():
    # As PyTorch on a GPU: NaN where differences are beyond fp32, 0 where only their squares are, or the sum of the row.
    for columns in (3, 63, 603, 3000, 3072):
        apart, alike, one, half = (
            torch.zeros(columns),
            torch.full((columns,), 3e38),
            torch.zeros(columns),
            torch.zeros(columns),
        )
        apart[::3], apart[1::3], one[0], half[: columns // 2 + 1] = 3e38, -3e38, 1e30, 3e38
        for dtype in (torch.float32, torch.bfloat16):
            y = layer_norm(torch.stack((apart, alike, one, half)).to(dtype), columns)
            assert y[0].isnan().all() and (y[1:] == 0).all(), (columns, dtype)


def check_elements_of_a_group_beyond_int32_are_counted():
    # The first tile of a group, of whose tiles nothing else is known.
    x, y, stats, sums = torch.full((64,), 7.0), torch.empty(64), torch.empty(2), torch.tensor([1e6, 1e12])
    for channels, positions in ((2, 2**30 + 64), (64, 2**26), (1, 2**31 + 8)):
        group_norm_parts_kernel[(1,)](
            y, stats, x, None, None, sums, 1, channels, positions, 1, 1e-5, CHANNELS=1, BLOCK=64, WHOLE=True, VECTOR=1, PARTS=1, HUGE=True,
        )  # fmt: skip
        mean = 64e6 / (channels * positions)
        variance = (1e12 + 64 * (1e6 - mean) ** 2) / (channels * positions)
        close(stats, torch.tensor([mean, variance**-0.5]), 1e-5)
        close(y, (x - mean) * variance**-0.5, 1e-5)
