// Shows the API's description in /openapi.json.

import { ask, keepToken, send, token } from "./api.js";
import { byId, make, show } from "./elements.js";

const JSON_TYPE = "application/json";
const LONGEST_ANSWER = 20_000; // characters shown

// --- shapes of data ---

// A schema as text, such as { "logits": [[number]], "ids"?: [string] | null }.
export function shape(schema, indent = "") {
  if (!schema) return "anything";
  if (schema.anyOf) return schema.anyOf.map((one) => shape(one, indent)).join(" | ");
  if (schema.format === "binary") return "binary";
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.additionalProperties?.format) return `{ …: ${shape(schema.additionalProperties)} }`;
  if (Array.isArray(schema.type)) return schema.type.join(" | ");
  if (schema.type === "array") return `[${shape(schema.items, indent)}]`;
  if (!schema.properties) return schema.type ?? "anything";
  const inner = `${indent}  `;
  const fields = Object.entries(schema.properties).map(([name, one]) => {
    const optional = schema.required?.includes(name) ? "" : "?";
    const why = one.description ? `  // ${one.description}` : "";
    return `${inner}"${name}"${optional}: ${shape(one, inner)}${why}`;
  });
  return `{\n${fields.join("\n")}\n${indent}}`;
}

// --- an example that fits the detector of this service ---

const PREDICT = "/v1/predict";
const ANY = 3; // the size of free dimensions in an example
const LONGEST_EXAMPLE = 1_000; // numbers

// A text, or the inputs of the model by name, all zeros or ones; undefined if they would be too long.
function exampleInputs({ inputs, texts }) {
  if (texts) return { texts: ["Write your text here."] };
  const sizes = inputs.map(({ shape }) => shape.map((n, at) => n ?? (at ? ANY : 1)));
  const total = sizes.reduce((sum, one) => sum + one.reduce((a, b) => a * b, 1), 0);
  if (total > LONGEST_EXAMPLE) return undefined;
  const filled = ([n, ...rest], value) =>
    n === undefined ? value : Array.from({ length: n }, () => filled(rest, value));
  const value = (dtype) => (dtype === "bool" ? true : dtype.includes("int") ? 1 : 0);
  return {
    inputs: Object.fromEntries(
      inputs.map(({ name, dtype }, at) => [name, filled(sizes[at], value(dtype))]),
    ),
  };
}

function exampleOf(path, body, detector) {
  if (path === PREDICT && detector?.model) return body.example && exampleInputs(detector.model);
  if (path !== "/v1/score" || detector?.scores_from.join() !== "logits") return body.example;
  const made = Array.from({ length: detector.n_columns.logits }, (_, at) => (at < 2 ? 2.5 : -4));
  return { logits: [detector.example ?? made] };
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

const fileOf = (type) => (type.startsWith("image/") ? "photo.jpg" : "inputs.safetensors");

export function curl(method, path, type, example, needsToken) {
  const parts = [`curl ${quoted(location.origin + path)}`];
  if (method === "POST" && !type) parts[0] = `curl -X POST ${quoted(location.origin + path)}`;
  if (needsToken) parts.push('-H "Authorization: Bearer $NESCIO_TOKEN"');
  if (type) parts.push(`-H ${quoted(`Content-Type: ${type}`)}`);
  if (type && example) parts.push(`-d ${quoted(JSON.stringify(example))}`);
  else if (type) parts.push(`--data-binary @${fileOf(type)}`);
  return parts.join(" \\\n  ");
}

// The body in the example command: an image, if the model takes images.
function chosenBody(path, body, detector) {
  const formats = Object.entries(body?.content ?? {});
  const { model } = detector ?? {};
  if (path !== PREDICT || !model || model.preprocessing) return formats[0] ?? [];
  const shown = formats.find(([, content]) => exampleOf(path, content, detector));
  return shown ?? formats.at(-1); // the last one is a file of arrays
}

// --- one operation ---

const code = (text, attributes = {}) =>
  make("pre", { tabindex: "0", ...attributes }, make("code", text));

function parametersOf(parameters = []) {
  if (!parameters.length) return null;
  return make("div",
    make("h3", "Parameters"),
    make("dl.meanings",
      parameters.flatMap((one) => [
        make("dt", make("code", one.name), ` in the ${one.in}, ${one.schema?.type ?? "any"}`),
        make("dd", one.description ?? one.schema?.description ?? ""),
      ]),
    ),
  );
}

function modelOf(path, detector) {
  if (path !== PREDICT || !detector) return null;
  const { model } = detector;
  if (!model) return make("p", "This service was started without --model, so it has no model.");
  const inputs = model.inputs.flatMap(({ name, shape: sizes, dtype }) => [
    make("dt", make("code", name)),
    make("dd", `${dtype}, shape [${sizes.map((n) => n ?? "any").join(", ")}]`),
  ]);
  const image = "An image file is resized and normalised. Arrays are passed on unchanged.";
  return make("div.model",
    make("h3", "Inputs of the model"),
    make("dl.meanings", inputs),
    model.preprocessing ? make("p.aside", image) : null,
  );
}

function bodyOf(path, body, detector) {
  if (!body) return null;
  const formats = Object.entries(body.content).map(([type, content]) => {
    const example = exampleOf(path, content, type === JSON_TYPE ? detector : null);
    return make("li",
      make("code", type),
      content.schema?.format === "binary" ? null : code(shape(content.schema)),
      example ? make("p.aside", "For example:") : null,
      example ? code(JSON.stringify(example)) : null,
    );
  });
  const list = make("ul.formats", formats);
  return make("div", make("h3", "Body, in one of these formats"), list);
}

function answersOf(responses) {
  const entries = Object.entries(responses).flatMap(([status, { description, content = {} }]) => {
    const types = Object.entries(content);
    const first = types[0]?.[1].schema;
    return [
      make("dt", make("b", { class: status < 400 ? "in" : "out" }, status)),
      make("dd",
        `${description} `,
        make("span.aside", types.map(([type]) => type).join(", ")),
        status < 400 && first?.properties ? code(shape(first)) : null,
      ),
    ];
  });
  return make("div", make("h3", "Answers"), make("dl.meanings", entries));
}

function sender(method, path, type, example) {
  const answer = make("div", { role: "status" });
  const go = async () => {
    try {
      const options = type ? { method, type, body: JSON.stringify(example) } : { method };
      const found = await send(path, options);
      const text = await found.text();
      const isJson = found.headers.get("content-type")?.includes("json");
      const shown = isJson ? JSON.stringify(JSON.parse(text), null, 2) : text;
      answer.replaceChildren(
        make("p.aside", `The service answered ${found.status}.`),
        code(shown.slice(0, LONGEST_ANSWER), { class: "answer" }),
      );
    } catch (error) {
      answer.replaceChildren(make("p.trouble", error.message));
    }
  };
  const attributes = { type: "button", class: "quiet", onclick: go };
  return [make("button", attributes, "Send this request"), answer];
}

function operation(path, method, about, { detector, needsToken }) {
  const [type, content] = chosenBody(path, about.requestBody, detector);
  const example = content && exampleOf(path, content, detector);
  const sendable = method === "GET" || Boolean(example);
  const isOpen = !path.startsWith("/v1/") && path !== "/metrics";
  const address = path + exampleQuery(about.parameters);
  return make("article.card", { id: anchor(method, path), "data-path": path },
    make("h2", make("code.method", method), make("code", path)),
    make("p", make("b", `${about.summary}. `), about.description ?? ""),
    parametersOf(about.parameters),
    modelOf(path, detector),
    bodyOf(path, about.requestBody, detector),
    answersOf(about.responses),
    make("h3", "On the command line"),
    code(curl(method, address, type, example, needsToken && !isOpen), { class: "curl" }),
    ...(sendable ? sender(method, address, type, example) : []),
  );
}

function exampleQuery(parameters = []) {
  const required = parameters.filter((one) => one.required).map((one) => [one.name, one.example]);
  return required.length ? `?${new URLSearchParams(required)}` : "";
}

const anchor = (method, path) => `${method}-${path.replaceAll("/", "-")}`.toLowerCase();

// --- the page ---

async function ownDetector() {
  try {
    return { detector: await ask("/v1/detector"), needsToken: Boolean(token()) };
  } catch (error) {
    return { detector: null, needsToken: error.status === 401 };
  }
}

async function start() {
  let description;
  try {
    description = await ask("/openapi.json");
  } catch (error) {
    byId("trouble").textContent = error.message;
    show(byId("trouble"), true);
    return;
  }
  const known = await ownDetector();
  show(byId("token-form"), known.needsToken && !known.detector);
  byId("version").textContent = `${description.info.title} ${description.info.version}`;
  byId("summary").textContent = description.info.summary ?? "";
  const found = Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => [path, method.toUpperCase(), about]),
  );
  byId("contents").replaceChildren(
    ...found.map(([path, method, about]) =>
      make("a", { href: `#${anchor(method, path)}` },
        make("code", path),
        make("span", about.summary),
      ),
    ),
  );
  byId("operations").replaceChildren(
    ...found.map(([path, method, about]) => operation(path, method, about, known)),
  );
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").value.trim());
  start();
});
start();
