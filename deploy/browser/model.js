// Runs a file of `nescio export` in the browser, with onnxruntime-web.

import * as ort from "./ort.wasm.bundle.min.mjs";

ort.env.wasm.numThreads = 1; // more threads need a cross-origin isolated page

const ONE = 2 ** 22; // Pillow computes in whole numbers, of which this is 1
const OUTPUTS = ["probs", "score", "p_value", "in_distribution"];

// Returns { shape, size, labels, preprocessing, detector, tpr, run }.
export async function openModel(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`cannot load ${address}: ${answer.status} ${answer.statusText}.`);
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const facts = metadata(bytes);
  const session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
  const missing = OUTPUTS.filter((name) => !session.outputNames.includes(name));
  if (missing.length) {
    throw new Error(`${address} has no output ${missing.join(", ")}: write it with nescio export.`);
  }
  const [input, ...others] = session.inputMetadata;
  if (others.length || input.type !== "float32") {
    throw new Error(`${address} must have one input of float32, to be used on this page.`);
  }
  const shape = input.shape.slice(1); // without the batch
  if (!shape.every(Number.isInteger)) {
    throw new Error(`${address} leaves the size of its input open: (${input.shape.join(", ")}).`);
  }
  return {
    shape,
    size: shape.reduce((product, side) => product * side, 1),
    labels: facts["nescio.label_names"],
    preprocessing: facts["nescio.preprocessing"],
    detector: facts["nescio.detector"],
    tpr: facts["nescio.tpr"],
    run: async (values) => {
      const tensor = new ort.Tensor("float32", values, [1, ...shape]);
      const found = await session.run({ [input.name]: tensor }, OUTPUTS);
      return {
        probs: Array.from(found.probs.data),
        score: found.score.data[0],
        pValue: found.p_value.data[0],
        inside: Boolean(found.in_distribution.data[0]),
      };
    },
  };
}

// The metadata of an ONNX file: field 14 of its protobuf message, pairs of a key and a value.
export function metadata(bytes) {
  const facts = {};
  for (const [field, content] of fields(bytes)) {
    if (field !== 14) continue;
    const [key, value] = [1, 2].map((wanted) => {
      const found = [...fields(content)].find(([number]) => number === wanted);
      return found ? new TextDecoder().decode(found[1]) : "";
    });
    try {
      facts[key] = JSON.parse(value);
    } catch {
      facts[key] = value; // plain text
    }
  }
  return facts;
}

// The fields of a protobuf message that have a length, each as its number and its bytes.
function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (!(byte & 128)) return value;
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    const kind = tag & 7;
    if (kind === 2) {
      const length = varint();
      yield [Math.floor(tag / 8), bytes.subarray(at, at + length)];
      at += length;
    } else if (kind === 0) varint();
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else throw new Error("the file is not an ONNX file.");
  }
}

// Resizes an image with Pillow's bilinear filter, as nescio does, and normalises it. Pillow resizes
// some images first in height and then in width: bytes may then differ by 1.
export function normalised({ data, width, height }, { size, mean, std }) {
  const wide = resized(data, width, height, size, 4, width * 4); // (height, size)
  const square = resized(wide, height, size, size, size * 4, 4); // (size, size), transposed
  const values = new Float32Array(3 * size * size);
  for (let y = 0; y < size; y++) {
    for (let x = 0; x < size; x++) {
      for (let colour = 0; colour < 3; colour++) {
        const byte = square[(x * size + y) * 4 + colour];
        values[(colour * size + y) * size + x] = (byte / 255 - mean[colour]) / std[colour];
      }
    }
  }
  return values;
}

// Resizes each of `lines` lines of `length` RGBA pixels to `size` pixels. A pixel is `step` bytes
// after the one before it, and a line is `stride` bytes after the line before it.
function resized(from, length, lines, size, step, stride) {
  const to = new Uint8ClampedArray(lines * size * 4);
  const scale = length / size;
  const reach = Math.max(scale, 1); // of the filter, to both sides
  for (let at = 0; at < size; at++) {
    const centre = (at + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - reach + 0.5));
    const last = Math.min(length, Math.trunc(centre + reach + 0.5));
    const weights = [];
    for (let near = first; near < last; near++) {
      weights.push(Math.max(0, 1 - Math.abs((near + 0.5 - centre) / reach)));
    }
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const shares = weights.map((weight) => Math.floor((weight / total) * ONE + 0.5));
    for (let line = 0; line < lines; line++) {
      for (let colour = 0; colour < 3; colour++) {
        let sum = ONE / 2;
        for (let near = 0; near < shares.length; near++) {
          sum += shares[near] * from[line * stride + (first + near) * step + colour];
        }
        to[(line * size + at) * 4 + colour] = Math.floor(sum / ONE);
      }
    }
  }
  return to;
}
