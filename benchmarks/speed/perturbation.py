"""ODIN's settings together against each one by itself."""

from __future__ import annotations

from speed.harness import Bench


def run(bench: Bench) -> None:
    import torch

    from nescio.lab.networks.network import build_network, prepared
    from nescio.lab.perturbation import TEMPERATURES, find_directions, step
    from nescio.lab.settings import ODIN_EPSILONS
    from nescio.models.images import Preprocessing
    from nescio.models.torch_models import TorchRunner

    torch.manual_seed(0)
    network = prepared(build_network("resnet18", 80), "cpu")
    module = TorchRunner(network).module()
    inputs = torch.randn(4, 3, 64, 64)
    preprocessing = Preprocessing(64)
    std = preprocessing.per_colour(preprocessing.std, inputs)

    def direct() -> torch.Tensor:
        """Compute each of the 84 settings separately: a gradient, a step, a second pass."""
        result = []
        for epsilon in ODIN_EPSILONS:
            for temperature in TEMPERATURES:
                x = inputs.clone().requires_grad_(True)
                top = network(x).amax(1)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    top, torch.ones_like(top)
                )
                (gradient,) = torch.autograd.grad(loss, x)
                with torch.inference_mode():
                    logits = network(inputs - epsilon * gradient.sign() / std)
                result.append(torch.sigmoid(logits / temperature).amax(1))
        return torch.stack(result)

    def shared() -> torch.Tensor:
        """One gradient for all of them, one pass for each epsilon."""
        directions = find_directions(module, inputs, preprocessing, ("max",))
        result = []
        for epsilon in ODIN_EPSILONS:
            logits = step(module, inputs, directions, "max", epsilon)[0]
            result += [torch.sigmoid(logits / temperature).amax(1) for temperature in TEMPERATURES]
        return torch.stack(result)

    bench.compare(
        "ODIN's 84 settings, ResNet-18 on 4 images of 64 x 64",
        "each setting separately",
        {"each setting separately": direct, "nescio": shared},
        rounds=3,
    )
    difference = float((direct() - shared()).abs().max())
    bench.fact("ODIN's settings: largest difference", difference, at_most=1e-5)
