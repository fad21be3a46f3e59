// The API's description, drawn from /openapi.json without anything from elsewhere.

import { ask, keepToken, send, token } from "./api.js";
import { byId, make, show } from "./elements.js";

const JSON_TYPE = "application/json";
const LONGEST_ANSWER = 20_000; // characters that are shown

// --- shapes of data ---

// A schema as a person would write it down: { "logits": [[number]], "ids"?: [string] | null }.
export function shape(schema, components, indent = "") {
  if (!schema) return "anything";
  if (schema.$ref) return shape(components?.[schema.$ref.split("/").at(-1)], components, indent);
  if (schema.anyOf) return schema.anyOf.map((one) => shape(one, components, indent)).join(" | ");
  if (schema.format === "binary") return "binary";
  if (Array.isArray(schema.type)) return schema.type.join(" | ");
  if (schema.type === "array") return `[${shape(schema.items, components, indent)}]`;
  if (!schema.properties) return schema.type ?? "anything";
  const inner = `${indent}  `;
  const fields = Object.entries(schema.properties).map(([name, one]) => {
    const optional = schema.required?.includes(name) ? "" : "?";
    const why = one.description ? `  // ${one.description}` : "";
    return `${inner}"${name}"${optional}: ${shape(one, components, inner)}${why}`;
  });
  return `{\n${fields.join("\n")}\n${indent}}`;
}

// --- an example that fits this service's own detector ---

function exampleOf(path, body, detector) {
  if (path !== "/v1/score" || detector?.reads !== "logits") return body.example;
  const made = Array.from({ length: detector.n_inputs }, (_, at) => (at < 2 ? 2.5 : -4));
  return { logits: [detector.example ?? made] };
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curl(method, path, type, example, needsToken) {
  const parts = [`curl ${quoted(location.origin + path)}`];
  if (method === "POST" && !type) parts[0] = `curl -X POST ${quoted(location.origin + path)}`;
  if (needsToken) parts.push('-H "Authorization: Bearer $NESCIO_TOKEN"');
  if (type) parts.push(`-H ${quoted(`Content-Type: ${type}`)}`);
  if (type && example) parts.push(`-d ${quoted(JSON.stringify(example))}`);
  else if (type) parts.push(`--data-binary @${type.replace("/", ".")}`); // @image.jpeg
  return parts.join(" \\\n  ");
}

// --- one operation ---

const code = (text, attributes = {}) =>
  make("pre", { tabindex: "0", ...attributes }, make("code", {}, text));

function parametersOf(parameters = []) {
  if (!parameters.length) return null;
  return make(
    "div",
    {},
    make("h3", {}, "Parameters"),
    make(
      "dl",
      { class: "meanings" },
      parameters.flatMap((one) => [
        make("dt", {}, make("code", {}, one.name), ` in the ${one.in}, ${one.schema?.type ?? "any"}`),
        make("dd", {}, one.description ?? one.schema?.description ?? ""),
      ]),
    ),
  );
}

function bodyOf(path, body, components, detector) {
  if (!body) return null;
  const formats = Object.entries(body.content).map(([type, content]) => {
    const example = exampleOf(path, content, type === JSON_TYPE ? detector : null);
    return make(
      "li",
      {},
      make("code", {}, type),
      content.schema?.format === "binary" ? null : code(shape(content.schema, components)),
      example ? make("p", { class: "aside" }, "For example:") : null,
      example ? code(JSON.stringify(example)) : null,
    );
  });
  const list = make("ul", { class: "formats" }, formats);
  return make("div", {}, make("h3", {}, "Body, in one of"), list);
}

function answersOf(responses, components) {
  const entries = Object.entries(responses).flatMap(([status, { description, content = {} }]) => {
    const types = Object.entries(content);
    const first = types[0]?.[1].schema;
    return [
      make("dt", {}, make("b", { class: status < 400 ? "in" : "out" }, status)),
      make(
        "dd",
        {},
        `${description} `,
        make("span", { class: "aside" }, types.map(([type]) => type).join(", ")),
        status < 400 && first?.properties ? code(shape(first, components)) : null,
      ),
    ];
  });
  return make("div", {}, make("h3", {}, "Answers"), make("dl", { class: "meanings" }, entries));
}

function sender(method, path, type, example) {
  const answer = make("div", { role: "status" });
  const go = async () => {
    try {
      const options = type ? { method, type, body: JSON.stringify(example) } : { method };
      const found = await send(path, options);
      const text = await found.text();
      const isJson = found.headers.get("content-type")?.startsWith(JSON_TYPE);
      const shown = isJson ? JSON.stringify(JSON.parse(text), null, 2) : text;
      answer.replaceChildren(
        make("p", { class: "aside" }, `The service answered ${found.status}.`),
        code(shown.slice(0, LONGEST_ANSWER), { class: "answer" }),
      );
    } catch (error) {
      answer.replaceChildren(make("p", { class: "trouble" }, error.message));
    }
  };
  const attributes = { type: "button", class: "quiet", onclick: go };
  return [make("button", attributes, "Send it from here"), answer];
}

function operation(path, method, about, components, { detector, needsToken }) {
  const [type, content] = Object.entries(about.requestBody?.content ?? {})[0] ?? [];
  const example = content && exampleOf(path, content, detector);
  const sendable = method === "GET" || Boolean(example);
  const isOpen = !path.startsWith("/v1/") && path !== "/metrics";
  return make(
    "article",
    { class: "part", id: anchor(method, path), "data-path": path },
    make("h2", {}, make("code", { class: "method" }, method), make("code", {}, path)),
    make("p", {}, make("b", {}, `${sentence(about.summary)} `), about.description ?? ""),
    parametersOf(about.parameters),
    bodyOf(path, about.requestBody, components, detector),
    answersOf(about.responses, components),
    make("h3", {}, "From a shell"),
    code(curl(method, path, type, example, needsToken && !isOpen), { class: "curl" }),
    ...(sendable ? sender(method, path, type, example) : []),
  );
}

const sentence = (text) => (text.endsWith("?") ? text : `${text}.`);

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
      make(
        "a",
        { href: `#${anchor(method, path)}` },
        make("code", {}, path),
        make("span", {}, about.summary),
      ),
    ),
  );
  const components = description.components?.schemas;
  byId("operations").replaceChildren(
    ...found.map(([path, method, about]) => operation(path, method, about, components, known)),
  );
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").value.trim());
  start();
});
start();
