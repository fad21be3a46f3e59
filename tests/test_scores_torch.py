"""torch in, torch out; and the NumPy package never asks for torch."""

import numpy as np
import pytest

from nescio import scores
from nescio.errors import InputError
from nescio.scores import SCORES

torch = pytest.importorskip("torch")
K = 3


def call(name, logits):
    return SCORES[name](logits, k=K) if name.startswith("top_k") else SCORES[name](logits)


@pytest.fixture
def logits(rng):
    values = rng.normal(-3, 6, (64, 12))
    values[0] = -70.0
    values[1, :4] = -np.inf
    values[2, 3] = 120.0
    return values


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_every_score_agrees_with_numpy(name, dtype, grad, logits):
    tensor = torch.tensor(logits).to(dtype).requires_grad_(grad)
    result = call(name, tensor)
    assert isinstance(result, torch.Tensor)
    assert result.device == tensor.device
    assert result.requires_grad == grad
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    reference = call(name, tensor.detach().double().numpy())
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    np.testing.assert_allclose(
        result.detach().numpy(), reference, rtol=tolerance, atol=tolerance * 100
    )


@pytest.mark.parametrize("name", SCORES)
def test_every_score_has_the_right_gradient(name, rng):
    tensor = torch.tensor(rng.normal(0, 2, (3, 5)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda f: call(name, f), (tensor,))


def test_the_gradient_of_joint_energy_is_the_label_probability(rng):
    tensor = torch.tensor(rng.normal(0, 30, (3, 5)), requires_grad=True)
    scores.joint_energy(tensor).sum().backward()
    np.testing.assert_allclose(tensor.grad.numpy(), scores.label_prob(tensor.detach().numpy()))


def test_far_inputs_keep_their_precision_under_autograd():
    tensor = torch.linspace(-80, -20, 200)[:, None].repeat(1, 80).requires_grad_()
    exact = 80 * np.exp(np.linspace(-80, -20, 200))
    np.testing.assert_allclose(scores.joint_energy(tensor).detach().numpy(), exact, rtol=1e-5)


def test_scores_survive_torch_export():
    class Scored(torch.nn.Module):
        def forward(self, f):
            return scores.joint_energy(f), scores.top_k_joint_energy(f, 2)

    example = torch.randn(4, 6)
    exported = torch.export.export(Scored(), (example,)).module()
    fresh = torch.randn(4, 6)
    for got, expected in zip(exported(fresh), Scored()(fresh), strict=True):
        torch.testing.assert_close(got, expected)


old_torch = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning"
)


@old_torch
def test_scores_survive_torch_jit_trace():
    example, fresh = torch.randn(4, 6), torch.randn(3, 6)
    traced = torch.jit.trace(scores.joint_energy, (example,))
    torch.testing.assert_close(traced(fresh), scores.joint_energy(fresh))


@old_torch
def test_scores_survive_torch_func(rng):
    tensor, direction = (torch.tensor(rng.normal(size=(3, 5))) for _ in range(2))
    _, tangent = torch.func.jvp(scores.joint_energy, (tensor,), (direction,))
    torch.testing.assert_close(tangent, (tensor.sigmoid() * direction).sum(1))
    batched = torch.func.vmap(scores.joint_energy)(tensor.expand(2, 3, 5))
    torch.testing.assert_close(batched[1], scores.joint_energy(tensor))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(tensor, direction)
        result = torch.autograd.forward_ad.unpack_dual(scores.joint_energy(dual))
        torch.testing.assert_close(result.tangent, tangent)


def test_energies_between_20_and_40_are_exact_in_float64():
    tensor = torch.linspace(20, 40, 50, dtype=torch.float64)[:, None].requires_grad_()
    exact = np.logaddexp(tensor.detach().numpy(), 0).sum(1)
    np.testing.assert_allclose(scores.joint_energy(tensor).detach().numpy(), exact, rtol=1e-14)


def test_msp_of_a_wholly_masked_row_has_a_gradient():
    tensor = torch.tensor([[-np.inf, -np.inf], [1.0, 2.0]], requires_grad=True)
    scores.msp(tensor).sum().backward()
    assert torch.isfinite(tensor.grad).all()


def test_sparse_tensors_are_refused():
    with pytest.raises(InputError, match="to_dense"):
        scores.joint_energy(torch.eye(3).to_sparse())
    with pytest.raises(InputError, match="complex"):
        scores.joint_energy(torch.zeros(2, 2, dtype=torch.complex64))


def test_labelwise_scores_keep_the_kind_of_array(logits):
    tensor = torch.tensor(logits)
    np.testing.assert_allclose(
        scores.label_energy(tensor).numpy(), scores.label_energy(logits), rtol=1e-12
    )
    np.testing.assert_allclose(scores.label_prob(tensor).numpy(), scores.label_prob(logits))


def test_detectors_take_tensors_of_any_precision(rng):
    from nescio import JointEnergy

    values = rng.normal(-1, 3, (200, 6)).astype(np.float32)
    detector = JointEnergy().calibrate(torch.tensor(values, requires_grad=True))
    assert np.array_equal(detector.predict(torch.tensor(values)), detector.predict(values))
    half = torch.tensor(values).to(torch.bfloat16)
    np.testing.assert_allclose(
        detector.score_samples(half), detector.score_samples(values), rtol=0.02
    )


@pytest.mark.parametrize(
    "operation",
    [
        scores.exp,
        lambda x: scores.where(x > 0, x, -1.0),
        lambda x: scores.like(x > 0, x),
        *(lambda x, k=k: scores.largest(x, k)[:, :1] for k in (1, 3, 6, 9)),
        lambda x: scores.largest(x, 4).sum(1),
    ],
)
def test_what_is_named_differently_agrees(operation, rng):
    x = rng.normal(size=(20, 6))
    result, expected = operation(torch.from_numpy(x)), operation(x)
    assert result.dtype == torch.float64
    assert expected.dtype == np.float64
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12)
