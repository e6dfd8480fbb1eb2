"""Every metric of the table: its name, label, unit and ncu's counters.

Units are SI base units; ratios are between 0 and 1. Counters have other names on other chips: an entry for a compute
capability (``"9.0"``, or a major version such as ``"12"``) takes precedence over the one under ``""``. Names are those of ncu
2025.3.1 on an H200 unless the entry says otherwise. Imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: A counter expression: counter names and the factor each is multiplied by, summed.
Terms = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Metric:
    """One quantity. ``unit`` is the unit in the table.

    ``ncu`` maps a compute capability to the counters of the metric; without all of them the metric is absent. ``scale``
    converts ncu's base unit to ours, as a percentage to a ratio.
    """

    name: str
    label: str
    unit: str
    ncu: Mapping[str, Terms] = field(default_factory=dict)
    scale: float = 1.0

    def terms(self, capability: str) -> Terms:
        """The counters on a chip of that compute capability (``"9.0"``); empty where it has none."""
        for key in (capability, capability.partition(".")[0], ""):
            if key in self.ncu:
                return self.ncu[key]
        return ()


def of_counter(name: str, factor: float = 1.0) -> dict[str, Terms]:
    return {"": ((name, factor),)}


def _count(name: str, label: str, counter: str) -> Metric:
    return Metric(name, label, "count", of_counter(counter))


def _percentage(name: str, label: str, counter: str) -> Metric:
    """A ratio that ncu counts in per cent."""
    return Metric(name, label, "ratio", of_counter(counter), 0.01)


def _thread_ops(prefix: str) -> dict[str, Terms]:
    """Operations of active threads: an addition or multiplication is one, a fused multiply-add two."""
    stem = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    return {"": tuple((stem.format(prefix + op), factor) for op, factor in (("add", 1), ("mul", 1), ("fma", 2)))}


def _tensor_ops(**by_chip: str) -> dict[str, Terms]:
    """Tensor-core operations: exactly 2MNK for a matrix product."""
    keys = {"any": "", "sm_80": "8.0", "sm_90": "9.0", "sm_100": "10", "sm_120": "12"}
    return {
        keys[chip]: tuple((f"sm__ops_path_tensor_{part}.sum", 1.0) for part in parts.split("+"))
        for chip, parts in by_chip.items()
    }


_STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "selected",
    "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip


def stall_name(reason: str) -> str:
    """A stall reason as Nsight Compute writes it: ``LG Throttle``."""
    letters = ("lg", "mio", "imc", "gmma", "tex")
    return " ".join(word.upper() if word in letters else word.capitalize() for word in reason.split("_"))


_ALL = (
    # The algorithm's minimum (KernelSpec.cost).
    Metric("algorithm_flops", "operations the algorithm needs", "flop"),
    Metric("algorithm_bytes_read", "bytes the algorithm must read", "byte"),
    Metric("algorithm_bytes_written", "bytes the algorithm must write", "byte"),
    Metric("tensor_bytes", "bytes of whole tensors, of which the algorithm may need fewer", "byte"),
    # Requests of the program, counted by the interpreter.
    Metric("requested_bytes_read", "bytes requested by loads", "byte"),
    Metric("requested_bytes_written", "bytes requested by stores", "byte"),
    Metric("unique_bytes_read", "distinct bytes read", "byte"),
    Metric("unique_bytes_written", "distinct bytes written", "byte"),
    Metric("sector_efficiency_read", "share of loaded 32-byte sectors that is used", "ratio"),
    Metric("sector_efficiency_written", "share of stored 32-byte sectors that is used", "ratio"),
    Metric("wasteful_line_read", "source line that loads the most unused bytes of sectors", "count"),
    Metric("wasteful_line_written", "source line that stores to the most sectors in part", "count"),
    Metric("requested_flops", "operations the program asks for, masked lanes included", "flop"),
    # The same, extrapolated from a sample of programs where there are too many.
    Metric("sampled_bytes_read", "bytes requested by loads, as of a sample of programs", "byte"),
    Metric("sampled_bytes_written", "bytes requested by stores, as of a sample of programs", "byte"),
    Metric("sampled_flops", "operations the program asks for, as of a sample of programs", "flop"),
    Metric("sampled_programs", "programs that were interpreted, where those are a sample", "count"),
    Metric("programs", "programs of the launch that the sample is of", "count"),
    Metric("relative_error", "||out - reference|| / ||reference||", "ratio"),
    Metric("tolerance", "largest accepted relative error", "ratio"),
    Metric("row_error", "largest relative error of a row", "ratio"),
    Metric("row_tolerance", "largest accepted relative error of a row", "ratio"),
    # Time. Three clocks, never mixed.
    Metric("gpu_time", "GPU time of a launch", "second", of_counter("gpu__time_duration.sum", 1e-9)),
    Metric("interval", "interval between events around the call", "second"),
    Metric("graph_time", "CUDA-graph replay of the call", "second"),
    Metric("sustained_time", "time of the call when it is repeated without a rest", "second"),
    Metric("launches", "launches that a value is of together", "count"),
    Metric("lanes_slowdown", "time with records in the code over time without", "ratio"),
    Metric("lane_wait_share", "share of the warps' time in waits", "ratio"),
    Metric("lane_product_share", "share of the programs' time with a product in flight", "ratio"),
    Metric("lane_conversion_share", "share of the warps' time in layout conversions", "ratio"),
    Metric("lane_barrier_share", "share of the warps' time at barriers of the block", "ratio"),
    Metric("lane_tile_wait_share", "share of a loop of products in which warps wait for tiles", "ratio"),
    Metric("lane_load_wait_share", "share of a loop of products in loads that are not asynchronous, and in their first use", "ratio"),
    Metric("lane_tile_wait_line", "line of the longest wait for tiles", "count"),
    Metric("lane_epilogue_share", "share of a program's time after its last product", "ratio"),
    Metric("lane_imbalance", "time of the busiest group of warps over the mean of the groups", "ratio"),
    Metric("lane_free_wait_share", "share of the time of warps that copy in which they wait for a free place", "ratio"),
    Metric("lane_tail_share", "share of the SMs' time after their last program, while others run", "ratio"),
    Metric("lane_programs_per_sm", "programs that ran on an SM at the same time", "count"),
    Metric("launch_start", "start of a launch after the first of its repetition", "second"),
    Metric("stream_overlap", "time by which a launch ends after a later launch of its stream", "second"),
    Metric("launch_call", "CPU's call of a launch after the first of its repetition began", "second"),
    Metric("compile_time", "time to compile", "second"),
    Metric("peak_memory", "peak device memory the call allocates", "byte"),
    # Resources of the compiled code and of the launch.
    _count("registers", "registers per thread", "launch__registers_per_thread"),
    Metric("shared_memory", "shared memory per block, static and dynamic", "byte",
           {"": (("launch__shared_mem_per_block_static", 1), ("launch__shared_mem_per_block_dynamic", 1))}),
    Metric("shared_memory_configured", "shared memory configured per SM", "byte", of_counter("launch__shared_mem_config_size")),
    Metric("spill_bytes_stored", "bytes of spill stores in the code, per thread", "byte"),
    Metric("spill_bytes_loaded", "bytes of spill loads in the code, per thread", "byte"),
    Metric("stack_bytes", "stack frame per thread", "byte"),
    _count("barriers", "named barriers per block", "launch__barrier_count"),
    _count("block_threads", "threads per block", "launch__block_size"),
    _count("grid_blocks", "blocks in the grid", "launch__grid_size"),
    _count("waves", "waves per SM", "launch__waves_per_multiprocessor"),
    Metric("widest_load", "widest global load, per thread", "byte"),
    Metric("widest_store", "widest global store, per thread", "byte"),
    Metric("tensor_instructions", "tensor-core instructions in the code", "count"),
    Metric("wgmma_short_of_registers", "wgmma in the code that run one by one for want of registers", "count"),
    Metric("wgmma_accumulator_used", "wgmma in the code that run one by one as others use their accumulator", "count"),
    Metric("wgmma_serialized_otherwise", "wgmma in the code that run one by one for another reason", "count"),
    # Occupancy.
    _percentage("theoretical_occupancy", "theoretical occupancy", "sm__maximum_warps_per_active_cycle_pct"),
    _percentage("achieved_occupancy", "achieved occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active"),
    Metric("estimated_occupancy", "occupancy estimated from the launch alone", "ratio"),
    *(
        _count(f"occupancy_limit_{ours}", f"blocks per SM that {label} allow", theirs)
        for ours, label, theirs in (
            ("registers", "registers", "launch__occupancy_limit_registers"),
            ("shared_memory", "shared memory", "launch__occupancy_limit_shared_mem"),
            ("warps", "warps", "launch__occupancy_limit_warps"),
            ("blocks", "block slots", "launch__occupancy_limit_blocks"),
            ("barriers", "barriers", "launch__occupancy_limit_barriers"),
        )
    ),
    # Memory traffic of the hardware.
    Metric("dram_bytes_read", "bytes read from HBM", "byte", of_counter("dram__bytes_read.sum")),
    Metric("dram_bytes_written", "bytes written to HBM", "byte", of_counter("dram__bytes_write.sum")),
    Metric("l2_bytes", "bytes through L2", "byte", of_counter("lts__t_bytes.sum")),
    Metric("l1_bytes", "bytes through L1", "byte", of_counter("l1tex__t_bytes.sum")),
    Metric("l2_to_l1_bytes", "bytes L1 fetched from L2", "byte", of_counter("l1tex__m_xbar2l1tex_read_bytes.sum")),
    Metric("l1_to_l2_bytes", "bytes L1 sent to L2", "byte", of_counter("l1tex__m_l1tex2xbar_write_bytes.sum")),
    _percentage("l1_hit_rate", "L1 hit rate", "l1tex__t_sector_hit_rate.pct"),
    _percentage("l2_hit_rate", "L2 hit rate", "lts__t_sector_hit_rate.pct"),
    *(
        _count(f"sectors_per_{way}", f"sectors per global {way} request",
               f"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{op}.ratio")
        for way, op in (("load", "ld"), ("store", "st"))
    ),
    Metric("shared_wavefronts", "shared-memory wavefronts", "count"),
    _count("bank_conflicts", "shared-memory bank conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
    Metric("conflict_line", "source line with the most predicted bank conflicts", "count"),
    Metric("conflicts_left", "predicted bank conflicts with the best layout of shared memory", "count"),
    *(
        Metric(f"cure_{name}", f"best layout of shared memory: {label}", "count")
        for name, label in (
            ("vec", "elements that stay together"),
            ("per_phase", "rows with the same swizzle"),
            ("max_phase", "swizzles"),
            ("padding", "elements of padding after a row"),
            ("order", "dimensions counted from 1, that of stride 1 first"),
        )
    ),
    _count("spill_loads", "spill load instructions executed", "smsp__sass_inst_executed_op_local_ld.sum"),
    _count("spill_stores", "spill store instructions executed", "smsp__sass_inst_executed_op_local_st.sum"),
    # Work of the hardware.
    Metric("flops_fp32", "fp32 operations", "flop", _thread_ops("f")),
    Metric("flops_fp64", "fp64 operations", "flop", _thread_ops("d")),
    # One count is one instruction; a packed one works on two elements (seen on an H200: 16.8 M bf16 additions, 8.4 M counts).
    Metric("flops_fp16", "fp16 and bf16 instructions on CUDA cores, a packed one counted once", "flop", _thread_ops("h")),
    Metric("tensor_ops_bf16", "bf16 tensor operations", "flop", _tensor_ops(any="src_bf16_dst_fp32")),
    Metric("tensor_ops_fp16", "fp16 tensor operations", "flop",
           _tensor_ops(any="src_fp16", **dict.fromkeys(("sm_80", "sm_100"), "src_fp16_dst_fp16+src_fp16_dst_fp32"))),
    Metric("tensor_ops_tf32", "tf32 tensor operations", "flop", _tensor_ops(any="src_tf32_dst_fp32")),
    Metric("tensor_ops_int8", "int8 tensor operations", "flop", _tensor_ops(any="src_int8")),
    Metric("tensor_ops_fp64", "fp64 tensor operations", "flop", _tensor_ops(any="src_fp64")),
    Metric("tensor_ops_fp8", "fp8 tensor operations (with fp4 and fp6 where the chip counts them together)", "flop",
           _tensor_ops(sm_90="src_fp8", sm_100="src_fp4_fp6_fp8_dst_fp16+src_fp4_fp6_fp8_dst_fp32",
                       sm_120="src_fp8_dst_fp16+src_fp8_dst_fp32")),
    # Speed of light and clocks.
    _percentage("sm_throughput", "SM throughput of peak", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
    _percentage("dram_throughput", "HBM throughput of peak", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
    Metric("energy", "energy of a call", "joule"),
    Metric("power", "power", "watt"),
    Metric("power_limit", "power limit", "watt"),
    Metric("sm_clock", "SM clock", "hertz", of_counter("sm__cycles_elapsed.avg.per_second")),
    Metric("dram_clock", "HBM clock", "hertz", of_counter("dram__cycles_elapsed.avg.per_second")),
    Metric("dram_bytes_per_cycle", "HBM bytes per cycle at peak", "byte", of_counter("dram__bytes.sum.peak_sustained")),
    *(
        Metric(f"stall_{reason}", f"warps stalled per issue: {stall_name(reason)}", "ratio",
               of_counter(f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"))
        for reason in _STALLS
    ),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
