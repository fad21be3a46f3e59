// The page: takes an image or numbers, shows labels, score and verdict. Nothing leaves the browser.

import { normalised, openModel } from "./model.js";

const byId = (id) => document.getElementById(id);
const address = new URLSearchParams(location.search).get("model") ?? "model.onnx";
let model;
let asked = 0; // only the newest input is shown

function make(kind, className, ...children) {
  const element = document.createElement(kind);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function trouble(error) {
  byId("result").replaceChildren(make("p", "trouble", `This did not work: ${error.message ?? error}`));
  byId("result").removeAttribute("aria-busy");
}

function number(value, digits) {
  return Math.abs(value) >= 0.001 ? String(+value.toPrecision(digits)) : value.toExponential(2);
}

function show(found, name) {
  const side = found.inside ? "in" : "out";
  const word = make("p", "word", found.inside ? "✓ In-distribution" : "✗ OUT: do not trust");
  const facts = make("dl", "facts");
  for (const [title, value] of [
    ["Score", number(found.score, 5)],
    ["p-value", number(found.pValue, 3)],
  ]) {
    facts.append(make("div", "", make("dt", "", title), make("dd", "", value)));
  }
  const rows = found.probs
    .map((prob, at) => ({ prob, label: model.labels?.[at] ?? `label ${at}` }))
    .sort((one, other) => other.prob - one.prob)
    .slice(0, 12);
  const list = make("ul", "bars");
  for (const { prob, label } of rows) {
    const bar = make("span", "bar");
    bar.style.width = `${100 * prob}%`;
    const item = make(
      "li",
      prob > 0.5 ? "predicted" : "",
      make("span", "name", label),
      make("span", "track", bar),
      make("span", "value", prob.toFixed(2)),
    );
    list.append(item);
  }
  const many = found.probs.length > rows.length ? `, the ${rows.length} likeliest` : "";
  byId("result").replaceChildren(
    make("div", `verdict ${side}`, word, make("p", "which", name)),
    facts,
    make("h3", "", `Labels${many}`),
    list,
    make("p", "aside", "Bold: predicted, with a probability above 0.5."),
  );
  byId("result").removeAttribute("aria-busy");
  byId("result").dataset.found = JSON.stringify(found);
}

async function judge(name, values) {
  const turn = ++asked;
  byId("result").setAttribute("aria-busy", "true");
  try {
    const found = await model.run(await values());
    if (turn === asked) show(found, name);
  } catch (error) {
    if (turn === asked) trouble(error);
  }
}

async function pixelsOf(file) {
  const options = { colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const bitmap = await createImageBitmap(file, options).catch(() => {
    throw new Error(`${file.name} is not an image that this browser can read.`);
  });
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

function takeImage(file) {
  if (!file) return;
  const picture = byId("picture");
  URL.revokeObjectURL(picture.src);
  picture.src = URL.createObjectURL(file);
  picture.alt = `The image ${file.name}`;
  picture.hidden = false;
  judge(file.name, async () => normalised(await pixelsOf(file), model.preprocessing));
}

function takeNumbers(text) {
  judge("These numbers", async () => {
    const values = Float32Array.from(text.split(/[\s,;[\]]+/).filter(Boolean), Number);
    const bad = values.findIndex((value) => !Number.isFinite(value));
    if (bad >= 0) throw new Error(`number ${bad + 1} of them is not a number.`);
    if (values.length !== model.size) {
      throw new Error(`the model takes ${model.size} numbers, not ${values.length}.`);
    }
    return values;
  });
}

function listen() {
  const drop = byId("drop");
  byId("file").addEventListener("change", (event) => takeImage(event.target.files[0]));
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      if (kind === "drop") takeImage(event.dataTransfer.files[0]);
    });
  }
  byId("numbers-form").addEventListener("submit", (event) => {
    event.preventDefault();
    takeNumbers(byId("numbers").value);
  });
}

try {
  model = await openModel(address);
  const share = `${+(100 * model.tpr).toPrecision(4)} %`;
  const kept = model.tpr ? `, which keeps ${share} of in-distribution inputs` : "";
  byId("about").textContent = `${address}: ${model.detector ?? "a detector"}${kept}.`;
  byId("images").hidden = !model.preprocessing;
  byId("numbers-form").hidden = Boolean(model.preprocessing);
  const shape = model.shape.length > 1 ? ` (${model.shape.join(" × ")})` : "";
  byId("numbers-note").textContent =
    `${model.size} numbers${shape}, separated by spaces, commas or lines.`;
  byId("result").replaceChildren(make("p", "waiting", "The verdict appears here."));
  byId("result").removeAttribute("aria-busy");
  listen();
  document.body.dataset.ready = "yes";
} catch (error) {
  trouble(error);
}
