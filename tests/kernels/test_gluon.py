"""Kernels in Gluon that keep rows on chip, run on the CPU: what is read has come, what is written is right."""

SCRIPTS = {
    "batch_gluon.py": {
        "check_rows_that_do_not_count_are_not_read",
        "check_what_softmax_does_not_define_is_nan_and_nothing_else_is",
        "check_gradients_of_norms_by_way_of_shared_memory",
        "check_norms_of_skewed_rows_by_way_of_shared_memory",
        "check_skewed_layer_norm_of_numbers_that_are_far_apart",
        "check_norms_of_rows_that_are_cut_into_parts",
        "check_softmax_of_rows_in_shared_memory",
        "check_layer_norm_of_numbers_that_are_far_apart_in_rows_that_are_cut_into_parts",
        "check_softmax_backward_of_rows_that_are_cut_into_parts",
    }
}


def test_on_the_cpu(wrong):
    assert not wrong, wrong
