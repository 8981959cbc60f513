import pytest
import torch

tw = pytest.importorskip("turnwise_torch", reason="turnwise_torch is not built: see examples/torch_extension")


def cuda_reason():
    if not torch.cuda.is_available():
        return "no CUDA device"
    try:
        tw.check(tw.new_status("cuda"))
    except ValueError as error:
        return str(error)
    return None


NO_CUDA = cuda_reason()
cuda_param = pytest.param("cuda", marks=pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA)))


@pytest.fixture(params=["cpu", cuda_param])
def device(request):
    return request.param


@pytest.fixture
def cuda():
    if NO_CUDA is not None:
        pytest.skip(NO_CUDA)
    return "cuda"
