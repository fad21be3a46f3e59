"""Crops of the input of any model of images, and the verdicts that they lead to."""

import numpy as np
import pytest

import nescio as ns
from nescio.data.preprocessing import Preprocessing
from nescio.errors import InputError
from nescio.outputs.crops import CROP_STARTS
from nescio.runners.crops import cut, run_crops

SIZE = 16
GAIN, BIAS = 20.0, -10.0


def mean_colours(images):
    """The logits of the models below: one label per colour."""
    return images.mean((2, 3)) * GAIN + BIAS


@pytest.fixture(params=["torch", "onnx"])
def model(request, tmp_path):
    """A model whose logits are the mean of each colour."""
    if request.param == "torch":
        torch = pytest.importorskip("torch")
        module = torch.nn.Conv2d(3, 3, 1)
        module.weight.data = GAIN * torch.eye(3)[:, :, None, None]
        module.bias.data = torch.full((3,), BIAS)
        pool = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), module, torch.nn.Flatten())
        return pool
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    constants = {"gain": np.float32([GAIN]), "bias": np.float32([BIAS])}
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("Mul", ["flat", "gain"], ["scaled"]),
            helper.make_node("Add", ["scaled", "bias"], ["logits"]),
        ],
        "colours",
        [helper.make_tensor_value_info("images", floats, ["n", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("logits", floats, ["n", 3])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path = tmp_path / "colours.onnx"
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def make_images(n_images, seed):
    """Grey images with a spot of one colour; every part of an image shows something."""
    rng = np.random.default_rng(seed)
    images = rng.uniform(0.4, 0.6, (n_images, 3, SIZE, SIZE)).astype(np.float32)
    for image in images:
        top, left = rng.integers(0, SIZE - 4, 2)
        image[rng.integers(3), top : top + 4, left : left + 4] = 1.0
    return images


def test_crops_are_what_pillow_cuts_out_and_enlarges(rng):
    pil = pytest.importorskip("PIL.Image")
    pixels = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
    image = pixels.transpose(2, 0, 1)[None]
    for top in CROP_STARTS:
        for left in CROP_STARTS:
            box = tuple(int(24 * at) for at in (left, top, left + 0.5, top + 0.5))
            expected = Preprocessing(24).pixels(pil.fromarray(pixels).crop(box))
            # Pillow rounds after each axis.
            assert np.abs(cut(image, top, left)[0].astype(int) - expected).max() <= 1


def test_the_outputs_have_those_of_the_crops(model):
    images = make_images(5, 0)
    runner = ns.wrap(model, detector="mixed").runner
    expected = [mean_colours(cut(images, top, left)) for top in CROP_STARTS for left in CROP_STARTS]
    for n_images in (1, 5):
        arrays = runner.run(images[:n_images])
        np.testing.assert_allclose(arrays["logits"], mean_colours(images[:n_images]), atol=1e-4)
        found = arrays["crops_logits"].reshape(n_images, 9, 3).swapaxes(0, 1)
        np.testing.assert_allclose(found, np.stack(expected)[:, :n_images], rtol=1e-4, atol=1e-4)
    assert ns.wrap(model).outputs(images).names == ("logits",)


def test_half_of_an_image_is_unknown(model, tmp_path):
    known, images = make_images(2, 7), make_images(6, 1)
    images[1, :, :, SIZE // 2 :] = 0.0  # black: the model sees nothing
    images[2, :, : SIZE // 2] = 0.0
    images[3] = 0.0
    images[4:] = known
    guarded = ns.wrap(model, detector="mixed").calibrate(make_images(400, 2))
    found = guarded(images).assessment
    assert found.verdicts[1:4].tolist() == ["MIXED", "MIXED", "OUT"]
    heat = found.heat_map(1)
    assert heat[:, :2].max() < heat[:, 2:].min()
    heat = found.heat_map(2)
    assert heat[2:].max() < heat[:2].min()
    assert "MIXED" in repr(guarded(images))
    guarded.save(tmp_path / "mixed.nescio")
    again = ns.wrap(model, detector=tmp_path / "mixed.nescio").assess(images)
    assert all(
        np.array_equal(again.columns()[name], array) for name, array in found.columns().items()
    )


def test_crops_run_in_the_batches_that_the_model_takes():
    images, seen = make_images(5, 3), []

    def run(inputs):
        seen.append(len(inputs["x"]))
        return {"logits": mean_colours(inputs["x"])}

    together = run_crops(run, {"x": images}, fixed_batch=False)
    one_by_one = run_crops(run, {"x": images}, fixed_batch=True)
    assert seen == [10, 10, 10, 10, 5] + [5] * 9
    np.testing.assert_array_equal(together["crops_logits"], one_by_one["crops_logits"])
    seen.clear()
    run_crops(run, {"x": images[:1]}, fixed_batch=False)
    assert seen == [9]


@pytest.mark.parametrize(
    "inputs", [np.zeros((4, 6)), np.zeros((2, SIZE, SIZE, 3)), (np.zeros(2), np.zeros(2))]
)
def test_crops_need_images(inputs):
    with pytest.raises(InputError, match="crops need a single input of images"):
        run_crops(lambda crops: {}, inputs, fixed_batch=False)
