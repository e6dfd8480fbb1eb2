"""Terms, bounds and integer sums of attention's backward pass on Hopper, interpreted."""

SCRIPTS = {"batch_attention_sums.py": {"check_no_dq_passes_the_bound"}}


def test_interpreted(wrong):
    assert not wrong, wrong
