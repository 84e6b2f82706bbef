// The one way to the server: adds the token, waits while the server is busy, and turns refusals into errors.

const TOKEN = "retrievalguard-token";
const RETRIES = 3;

// The server answered, and refused; the message is its own.
export class Refused extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.requestId = error.request_id;
  }
}

// No answer at all, or half of one.
export class ServerGone extends Error {}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

let refusedToken = () => {};

// Whom to tell when the server wants a token, or another one.
export function onRefusedToken(listener) {
  refusedToken = listener;
}

export const isAbort = (error) => error?.name === "AbortError";

// A path below the folder of the page. `waiting(seconds, attempt, attempts)` is called every second while the server
// is busy, and once with zero seconds when it is asked again.
export async function api(path, { method = "GET", accept = "application/json", body, signal, waiting = () => {} } = {}) {
  const headers = { Accept: accept };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body) headers["Content-Type"] = body.type || "application/octet-stream";
  for (let attempt = 1; ; attempt += 1) {
    let response;
    try {
      response = await fetch(path, { method, headers, body, signal, cache: "no-cache" });
    } catch (error) {
      if (isAbort(error)) throw error;
      throw new ServerGone("the server does not answer");
    }
    if (response.ok) return response;
    const busy = response.status === 429 || response.status === 503;
    if (!busy || attempt > RETRIES) throw await refusal(response);
    response.body?.cancel().catch(() => {});
    const seconds = Math.min(Math.max(Number(response.headers.get("Retry-After")) || 1, 1), 120);
    for (let left = seconds; left > 0; left -= 1) {
      waiting(left, attempt, RETRIES);
      await second(signal);
    }
    waiting(0, attempt, RETRIES);
  }
}

export async function json(path, options) {
  return whole((await api(path, options)).json());
}

export async function blob(path, options) {
  return whole((await api(path, { accept: "image/*", ...options })).blob());
}

// What is read of an answer, unless the connection breaks.
export async function whole(reading) {
  try {
    return await reading;
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ServerGone("the answer broke off");
  }
}

// A path for an identity, which may contain slashes.
export const itemPath = (identity) => `v1/items/${encodeURIComponent(identity)}`;

async function refusal(response) {
  let error;
  try {
    error = (await response.json()).error;
  } catch {
    // Not from the API itself, perhaps from a proxy in between.
  }
  const found = new Refused(response.status, error ?? { code: "unknown", message: `the server answered ${response.status} ${response.statusText}`.trim() });
  if (response.status === 401) refusedToken();
  return found;
}

function second(signal) {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(new DOMException("aborted", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, 1000);
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });
}
