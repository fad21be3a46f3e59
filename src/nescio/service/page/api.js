// Requests to the service. The token is kept in sessionStorage, that is, in this tab only.

const KEY = "nescio-token";

// An error answer of the service: its status, and the sentence that says what to do.
export class ServiceError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const token = () => sessionStorage.getItem(KEY) ?? "";

export function keepToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

export async function ask(path, { method = "GET", body, type } = {}) {
  // A header can only contain ASCII, so no other token can be valid.
  if (/[^ -~]/.test(token())) throw new ServiceError(401, "The token must be ASCII text.");
  const headers = {};
  if (type) headers["Content-Type"] = type;
  if (token()) headers.Authorization = `Bearer ${token()}`;
  const answer = await fetch(path, { method, body, headers, cache: "no-store" }).catch(() => {
    throw new ServiceError(0, "The service cannot be reached.");
  });
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({}));
  throw new ServiceError(answer.status, problem.detail ?? `The service answered ${answer.status}.`);
}

// A chart that the service has drawn. Parsing it does not run anything in it.
export const parseSvg = (text) =>
  document.importNode(new DOMParser().parseFromString(text, "text/html").querySelector("svg"), true);
