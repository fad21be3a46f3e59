// Requests to the service. The token stays in this tab: memory and sessionStorage.

const KEY = "nescio-token";

// A refusal of the service: its status, and what it says.
export class Refused extends Error {
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

export async function send(path, { method = "GET", body, type } = {}) {
  // A header holds ASCII only, and so does a token that the service knows.
  if (/[^ -~]/.test(token())) throw new Refused(401, "The token must be ASCII text.");
  const headers = {};
  if (type) headers["Content-Type"] = type;
  if (token()) headers.Authorization = `Bearer ${token()}`;
  try {
    return await fetch(path, { method, body, headers, cache: "no-store" });
  } catch {
    throw new Refused(0, "The service cannot be reached.");
  }
}

export async function ask(path, options) {
  const answer = await send(path, options);
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, problem.detail ?? `The service answered ${answer.status}.`);
}
