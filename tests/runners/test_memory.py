"""Batches in halves when the memory does not suffice."""

import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.data import load_coco  # noqa: E402
from nescio.errors import InputError  # noqa: E402
from nescio.outputs import Outputs  # noqa: E402
from nescio.runners import extract  # noqa: E402
from nescio.runners.memory import InHalves  # noqa: E402

TOO_MUCH = 2**60  # bytes; no machine has them, so that the allocator really fails


def by_torch():
    torch.empty(TOO_MUCH, dtype=torch.uint8)


def by_numpy():
    np.empty(TOO_MUCH, np.uint8)


def on_a_gpu():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Counting:
    """Computes the square of each row, and needs too much memory for more than `most` rows."""

    def __init__(self, most, fail):
        self.most, self.fail = most, fail
        self.attempts, self.seen = [], []

    def __call__(self, batch):
        self.attempts.append(len(batch))
        if len(batch) > self.most:
            self.fail()
        self.seen += batch[:, 0].tolist()
        return {"square": batch**2}


@pytest.mark.parametrize("fail", [by_torch, by_numpy, on_a_gpu])
def test_halves_until_it_fits_and_stays_there(fail):
    compute = Counting(3, fail)
    halves = InHalves(compute)
    rows = np.arange(27.0).reshape(27, 1)
    parts = [halves(rows[start : start + 10])["square"] for start in (0, 10, 20)]
    assert np.array_equal(np.concatenate(parts), rows**2)
    assert compute.seen == rows[:, 0].tolist()  # each once, in order
    assert halves.most == 3
    assert compute.attempts == [10, 5, 3, 3, 3, 1, 3, 3, 3, 1, 3, 3, 1]


def test_what_is_done_is_not_done_again_when_memory_gets_short():
    class Shrinking(Counting):
        def __call__(self, batch):
            self.most = 2 if len(self.seen) == 5 else self.most
            return super().__call__(batch)

    compute = Shrinking(5, by_torch)
    rows = np.arange(10.0).reshape(10, 1)
    assert np.array_equal(InHalves(compute)(rows)["square"], rows**2)
    assert compute.seen == rows[:, 0].tolist()
    assert compute.attempts == [10, 5, 5, 3, 2, 2, 1]


def test_a_single_sample_that_does_not_fit():
    with pytest.raises(InputError, match="memory to run the model on a single sample") as caught:
        InHalves(Counting(0, by_torch))(np.zeros((4, 1)))
    assert "allocate" in str(caught.value.__cause__)


def test_what_failed_keeps_no_memory():
    class Large:
        """Stands for the tensors of a pass."""

    alive = []

    def run(batch):
        large = Large()
        alive.append(weakref.ref(large))
        if len(batch) > 1:
            by_torch()

    def explained(batch):  # as runners do
        assert not any(one() for one in alive)
        try:
            run(batch)
        except RuntimeError as error:
            raise InputError("the model failed on a batch") from error
        return {"square": batch**2}

    assert len(InHalves(explained)(np.zeros((4, 1)))["square"]) == 4


def test_other_errors_are_raised():
    compute = Counting(3, lambda: [][0])
    with pytest.raises(IndexError):
        InHalves(compute)(np.zeros((4, 1)))
    assert compute.attempts == [4]


@pytest.mark.parametrize("fail", [by_torch, on_a_gpu])
def test_extraction_goes_on_in_halves(fail, checkpoint, coco_tree, tmp_path):
    made, split = checkpoint(), load_coco(coco_tree(), "val")
    whole = extract(made, split, tmp_path / "whole.safetensors", batch_size=8)
    sizes = []

    def limited(module, inputs):
        if len(inputs[0]) > 3:
            fail()
        sizes.append(len(inputs[0]))

    handle = made.network.backbone.register_forward_pre_hook(limited)
    halved = extract(made, split, tmp_path / "halved.safetensors", batch_size=8)
    handle.remove()
    assert sum(sizes) == len(split)  # none is computed twice
    assert (whole.at_once, halved.at_once) == (None, 2)
    one, other = Outputs.load(whole.path), Outputs.load(halved.path)
    np.testing.assert_allclose(other.logits, one.logits, rtol=1e-4, atol=1e-5)
    assert other.manifest["batch_size"] == 8  # what was asked for is the key
    assert (other.manifest["images_at_once"], "images_at_once" in one.manifest) == (2, False)
    assert extract(made, split, halved.path, batch_size=8).n_computed == 0
