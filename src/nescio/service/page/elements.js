// HTML elements, and numbers as text. Text is never parsed as HTML.

export const byId = (id) => document.getElementById(id);

// Makes an element such as "p.aside" of attributes (plain objects) and children.
export function make(tag, ...parts) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  node.classList.add(...classes);
  for (const part of parts.flat().filter((one) => one !== null && one !== undefined)) {
    if (part instanceof Node || typeof part !== "object") node.append(part);
    else for (const [key, value] of Object.entries(part)) node.setAttribute(key, value);
  }
  return node;
}

export function show(node, visible) {
  node.hidden = !visible;
}

// Shows what is wrong with a field, or nothing.
export function complain(name, text) {
  byId(`${name}-error`).textContent = text;
  show(byId(`${name}-error`), Boolean(text));
  byId(name).setAttribute("aria-invalid", String(Boolean(text)));
}

const whole = new Intl.NumberFormat("en");

export const count = (n) => whole.format(n);

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

// Four significant digits, with a true minus sign.
export function number(value) {
  if (value === null || value === undefined) return "none";
  const size = Math.abs(value);
  const text =
    size >= 1e6 || (size > 0 && size < 1e-5)
      ? value.toExponential(2)
      : String(Number(value.toPrecision(size >= 1e4 ? 6 : 4)));
  return text.replaceAll("-", "−");
}

// The same number of decimals for all, so that they are easy to compare.
export const fixed = (value) =>
  value === null ? "none" : value.toFixed(Math.abs(value) >= 100 ? 1 : 3).replace("-", "−");

export const legend = (entries) =>
  make("ul.legend", { "aria-hidden": "true" },
    entries.map(([kind, text]) => make("li", make("span", { class: `key ${kind}` }), text)),
  );

export function percent(share) {
  if (share > 0.9995 && share < 1) return "over 99.9 %";
  const plain = share === 0 || share === 1 || (share >= 0.1 && share < 0.995);
  const digits = plain ? 0 : share >= 0.001 ? 1 : 3;
  return `${Number((100 * share).toFixed(digits))} %`; // 1 %, not 1.0 %
}

// The width that a chart in this element should have; the service draws 200 to 2,000 pixels.
export const chartWidth = (id) => Math.min(2000, Math.max(200, Math.floor(byId(id).clientWidth)));
