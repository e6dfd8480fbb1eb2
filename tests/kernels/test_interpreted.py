"""Every kernel in Triton's interpreter: values, gradients, shapes, strides, special values."""

SCRIPTS = {
    "batch_interpreted.py": {
        "check_softmax_one_read", "check_softmax_special_values", "check_matmul", "check_matmul_strides_and_gradients",
        "check_special_values_of_elementwise", "check_empty", "check_writes_every_element",
    },
    "batch_norms.py": {
        "check_layer_norm_of_numbers_that_are_far_apart", "check_partial_sums_of_few_and_many_programs", "check_empty",
        "check_writes_every_element",
    },
    "batch_operators.py": {
        "check_small_workloads_and_that_every_element_is_written",
        "check_histogram_counts_what_is_in_range",
    },
    "batch_opcheck.py": set(),
    "batch_losses.py": {
        "check_cross_entropy_special_values",
        "check_linear_cross_entropy_chunks_are_whole_tiles_of_about_four_times_the_memory_of_x",
        "check_odd_numbers_of_classes_are_multiplied_in_two_parts",
    },
}  # fmt: skip


def test_interpreted(wrong):
    assert not wrong, wrong
