"""Triton's configuration of exported files."""

import numpy as np
import pytest

import nescio as ns
from fixtures.export import N_LABELS, classifier, some_logits
from nescio.cli import main
from nescio.errors import FileError

pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")
from google.protobuf import (  # noqa: E402  (onnx brings it)
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)

from nescio.export import triton_config  # noqa: E402

# The part of Triton's model_config.proto that is used: (name, number, type), repeated if a list.
TYPES = "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16"
FIELDS = {
    "ModelTensorReshape": [("shape", 1, ["int64"])],
    "ModelInput": [
        ("name", 1, "string"),
        ("data_type", 2, ".triton.DataType"),
        ("dims", 4, ["int64"]),
        ("reshape", 5, ".triton.ModelTensorReshape"),
    ],
    "ModelOutput": [
        ("name", 1, "string"),
        ("data_type", 2, ".triton.DataType"),
        ("dims", 3, ["int64"]),
        ("reshape", 5, ".triton.ModelTensorReshape"),
    ],
    "ModelDynamicBatching": [("preferred_batch_size", 1, ["int32"])],
    "ModelConfig": [
        ("max_batch_size", 4, "int32"),
        ("input", 5, [".triton.ModelInput"]),
        ("output", 6, [".triton.ModelOutput"]),
        ("dynamic_batching", 11, ".triton.ModelDynamicBatching"),
        ("backend", 17, "string"),
    ],
}


def _schema():
    file = descriptor_pb2.FileDescriptorProto(
        name="model_config.proto", package="triton", syntax="proto3"
    )
    kinds = file.enum_type.add(name="DataType")
    for number, name in enumerate(TYPES.split()):
        kinds.value.add(name=f"TYPE_{name}", number=number)
    for message, fields in FIELDS.items():
        described = file.message_type.add(name=message)
        for name, number, kind in fields:
            repeated, kind = (True, kind[0]) if isinstance(kind, list) else (False, kind)
            field = described.field.add(name=name, number=number, label=3 if repeated else 1)
            if kind.startswith("."):
                field.type_name = kind
                field.type = field.TYPE_ENUM if kind.endswith("DataType") else field.TYPE_MESSAGE
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("triton.ModelConfig"))


ModelConfig = _schema()
ONNX_TYPES = {"bool": 1, "int64": 9, "float": 11, "double": 12}


def parsed(text):
    """Read a configuration as Triton does: a field that it does not know is an error."""
    return text_format.Parse(text, ModelConfig())


def agrees(config, path) -> None:
    """Check names, types and shapes against the file, as Triton's backend does when it loads it."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert config.backend == "onnxruntime"
    for described, nodes in (
        (config.input, session.get_inputs()),
        (config.output, session.get_outputs()),
    ):
        assert [one.name for one in described] == [node.name for node in nodes]
        for one, node in zip(described, nodes, strict=True):
            assert ONNX_TYPES[node.type[len("tensor(") : -1]] == one.data_type
            given = list(one.reshape.shape) if one.HasField("reshape") else list(one.dims)
            assert one.dims  # Triton rejects an empty shape
            assert np.prod(given) == np.prod(one.dims)
            batch = [-1] if config.max_batch_size > 0 else []
            sizes = [size if isinstance(size, int) else -1 for size in node.shape]
            assert batch + given == sizes, one.name


def test_a_fixed_batch_size_and_other_shapes(tmp_path):
    path = classifier(tmp_path / "two.onnx", batch=2, input_name='an "input"\\', maps=True)
    config = parsed(triton_config(path))
    agrees(config, path)
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (0, False)
    assert [one.name for one in config.input] == ['an "input"\\']
    with pytest.raises(FileError, match="there is no file"):
        triton_config(tmp_path / "none.onnx")


def test_the_command_line_writes_a_repository(tmp_path, capsys):
    folder = tmp_path / "tagger"
    (folder / "1").mkdir(parents=True)
    ns.JointEnergy().calibrate(some_logits(), tpr=0.9).save(tmp_path / "d.nescio")
    command = ["export", str(tmp_path / "d.nescio"), "-o", str(folder / "1" / "model.onnx")]
    assert main([*command, "--triton", str(folder / "config.txt")]) == 1
    assert "--triton must end in .pbtxt" in capsys.readouterr().err
    assert list((folder / "1").iterdir()) == []
    assert main([*command, "--triton", str(folder / "config.pbtxt")]) == 0
    config = parsed((folder / "config.pbtxt").read_text())
    agrees(config, folder / "1" / "model.onnx")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (64, True)
    shapes = {one.name: list(one.dims) for one in config.output}
    assert shapes == {"probs": [N_LABELS], "score": [1], "p_value": [1], "in_distribution": [1]}
    (folder / "1" / "model.onnx").unlink()
    assert main([*command, "--triton", str(folder / "config.pbtxt")]) == 1  # it is there already
    assert list((folder / "1").iterdir()) == []
