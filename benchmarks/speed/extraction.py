"""The outputs of networks on images: each runtime against a plain loop.

The images are JPEG files of 640 by 480 pixels, made of noise in several sizes, so that decoding and
resizing takes as long as for photographs. Each runtime runs whole batches, with reading, as
`nescio extract` does after its choice; the time of the choice itself is printed apart.
torch.compile is left out: it takes a minute or more to compile, and is slower than the graphs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speed.harness import Bench

BATCH = 16
PLAIN = "plain loop (DataLoader, eager)"
N_LABELS = 80
N_IMAGES = {"densenet121": 2 * BATCH, "efficientnet-lite0": 4 * BATCH}


def run(bench: Bench) -> None:
    import torch

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        files = _images(Path(folder), max(N_IMAGES.values()))
        _decoding(bench, files)
        _network(bench, "EfficientNet-Lite0 at 224 px", "efficientnet-lite0", 224, files)
        _network(bench, "DenseNet-121 at 256 px", "densenet121", 256, files)


def _images(folder: Path, n_images: int) -> list[Path]:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    files = []
    for index in range(n_images):
        pixels = np.zeros((480, 640, 3))
        for size in (8, 32, 128):
            coarse = rng.integers(0, 256, (size * 3 // 4, size, 3), np.uint8)
            large = Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC)
            pixels += np.asarray(large, np.float64) / 3
        files.append(folder / f"{index:03}.jpg")
        Image.fromarray(pixels.astype(np.uint8)).save(files[-1], quality=90)
    return files


def _decoding(bench: Bench, files: list[Path]) -> None:
    import numpy as np
    from torch.nn.functional import interpolate
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    from nescio.models.images import Preprocessing, read_image

    preprocessing = Preprocessing(224)

    def by_pillow(file: Path) -> Any:
        return preprocessing.pixels(read_image(file))

    def by_torchvision(file: Path) -> Any:
        image = decode_jpeg(read_file(str(file)), mode=ImageReadMode.RGB)
        resized = interpolate(image[None], (224, 224), mode="bilinear", antialias=True)
        return resized[0].numpy()

    some = files[:16]
    bench.compare(
        "Reading 16 JPEG files of 640 x 480, one thread",
        "nescio (Pillow)",
        {
            "nescio (Pillow)": lambda: [by_pillow(file) for file in some],
            "torchvision.io and torch (not used: other pixels)": lambda: [
                by_torchvision(file) for file in some
            ],
        },
    )
    pairs = [(by_pillow(file).astype(int), by_torchvision(file)) for file in some]
    largest = max(float(np.abs(ours - other).max()) for ours, other in pairs)
    differing = float(np.mean([np.mean(ours != other) for ours, other in pairs]))
    bench.fact("Pillow and torchvision: largest difference of a pixel", largest, "of 255")
    bench.fact("Pillow and torchvision: pixels that differ", 100 * differing, "per cent")


def _network(bench: Bench, title: str, name: str, size: int, files: list[Path]) -> None:
    import numpy as np

    from nescio.detectors import JointEnergy
    from nescio.lab.data.split import Reader, Split, in_batches
    from nescio.lab.extraction import Runtimes
    from nescio.lab.networks.network import Architecture, Checkpoint, CheckpointRunner
    from nescio.models.images import Preprocessing
    from nescio.outputs import Outputs

    files = files[: N_IMAGES[name]]
    architecture = Architecture(name)
    weights = "imagenet" if "lite" in name else None  # a package has them; no download
    network = architecture.build(N_LABELS, weights).eval()
    plain = _plain_loop(architecture.build(N_LABELS), network, size, files)
    labels = tuple(f"label {index}" for index in range(N_LABELS))
    checkpoint = Checkpoint(network, architecture, labels, Preprocessing(size))
    own = CheckpointRunner(checkpoint)
    names = tuple(file.name for file in files)
    reader = Reader(
        Split("noise", "all", files[0].parent, names, None, None), checkpoint.preprocessing
    )
    batches = in_batches(len(files), BATCH)
    first_batch = next(reader.batches(batches[:1]))

    def loop(runner: Any) -> Callable[[], Any]:
        def run() -> Any:
            read = reader.batches(batches)
            return np.concatenate([runner.run(pixels)["logits"] for pixels in read])

        return run

    contenders: dict[str, Callable[[], Any]] = {PLAIN: plain}
    own.run(first_batch)  # shows which layers are called
    contenders["torch"] = loop(own)
    started = time.perf_counter()
    fast, choice = Runtimes().choose(own, lambda: first_batch, 10_000)
    bench.fact(f"{title}: seconds to export", time.perf_counter() - started, "s")
    print(f"  {choice}")
    contenders["auto"] = loop(fast)
    result: dict[str, Any] = {}

    def kept(contender: str) -> Callable[[], None]:
        return lambda: result.update({contender: contenders[contender]()})

    bench.compare(
        f"{title}, {len(files)} images in batches of {BATCH}",
        PLAIN,
        {contender: kept(contender) for contender in contenders},
        goal={"auto": 2.0},
        rounds=3,
    )
    expected = result[PLAIN]
    largest = max(float(np.abs(logits - expected).max()) for logits in result.values())
    detector = JointEnergy().calibrate(Outputs(expected, label_names=labels))
    verdicts = detector.predict(expected)
    same = all((detector.predict(logits) == verdicts).all() for logits in result.values())
    bench.fact(f"{title}: largest difference of a logit", largest, at_most=1e-4)
    bench.fact(f"{title}: equal verdicts of all runtimes", float(same), at_least=1)


def _plain_loop(copy: Any, network: Any, size: int, files: list[Path]) -> Callable[[], Any]:
    """Return what a user would write with torch alone."""
    import numpy as np
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    from nescio.models.images import Preprocessing

    copy.load_state_dict(network.state_dict())
    module = copy.eval()
    preprocessing = Preprocessing(size)

    class Files(Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> Any:
            pixels = preprocessing.pixels(Image.open(files[index]).convert("RGB"))
            return torch.from_numpy(preprocessing.normalise(np.array(pixels)))

    def run() -> Any:
        loader = DataLoader(Files(), BATCH, num_workers=2)
        with torch.inference_mode():
            return np.concatenate([module(images).numpy() for images in loader])

    return run
