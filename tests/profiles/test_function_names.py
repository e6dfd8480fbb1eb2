"""Readable names of GPU functions."""

import pytest
from tilescope.models import function_names


@pytest.mark.parametrize(("function", "name"), [
    ("softmax_kernel", "softmax_kernel"),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*, int)", "cunn_SoftMaxForward"),
    ("Memset (Device)", "Memset"),
    ("<lambda>", "<lambda>"),
    ("", ""),
])  # fmt: skip
def test_plain_names(function, name):
    assert function_names.plain_name(function) == name


def test_functions_of_one_name_are_told_apart():
    assert function_names.labels(["a::f<int>()", "g", "a::f<float>()", "g"]) == {
        "a::f<int>()": "f", "g": "g", "a::f<float>()": "f (2)",
    }  # fmt: skip


@pytest.mark.parametrize(("function", "said"), [
    ("softmax_kernel", "softmax_kernel"),
    ("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", "cuBLAS nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(P)", "cuBLAS cutlass_80_simt_sgemm_128x32_8x5_nn_align1"),
    ("triton_poi_fused_add_0", "Inductor triton_poi_fused_add_0"),
    ("void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>, A>(int)", "PyTorch add"),
    ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
     "float, float, at::native::binary_internal::MulFunctor<float> > >>(int)", "PyTorch mul"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::rsqrt_kernel_cuda(at::T&)::{lambda()#2}>(int)",
     "PyTorch rsqrt"),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::MeanOps<float>>>(R)",
     "PyTorch mean reduction"),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
     "at::native::MaxNanFunctor<float>>, unsigned int, float, 4, 4>>(R)", "PyTorch max reduction"),
    ("void native::vectorized_elementwise_kernel<4, native::<unnamed>::silu_kernel(at::TensorIteratorBase &)::[lambda()]>(int)",
     "PyTorch silu"),
    ("void native::<unnamed>::cunn_SoftMaxForward<4, float>(float *, int)", "PyTorch cunn_SoftMaxForward"),
    ("triton_poi_fused__scaled_dot_product_cudnn_attention_0",
     "Inductor triton_poi_fused__scaled_dot_product_cudnn_attention_0"),
    ("void pytorch_flash::flash_fwd_kernel<T>(P)", "FlashAttention flash_fwd_kernel"),
    ("cudnn_generated_fort_native_sdpa_x", "cuDNN cudnn_generated_fort_native_sdpa_x"),
    ("Memcpy DtoH (Device -> Pinned)", "CUDA Memcpy DtoH"),
])  # fmt: skip
def test_said_names_library_and_operation(function: str, said: str) -> None:
    assert function_names.said(function) == said
