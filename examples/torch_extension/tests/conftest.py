import pytest
import torch

import turnwise_torch as tw


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


def pytest_generate_tests(metafunc):
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", ["cpu", cuda_param])


@pytest.fixture
def cuda():
    if NO_CUDA is not None:
        pytest.skip(NO_CUDA)
    return "cuda"


@pytest.fixture
def make_batch():
    def make(r, device, **more):
        def whole(values):
            return torch.tensor(values, dtype=torch.int64, device=device)

        return tw.Batch(
            whole(r.offsets), whole(r.group), whole(r.trajectory), whole(r.token_offsets), tokens=r.old.numel(), **more
        )

    return make
