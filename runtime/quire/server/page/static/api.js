/** Requests to the server that sent this page. Addresses are relative: the page may stand below a path of a proxy. */

const KEY = "quire.key";

/** What went wrong, in words. status: of the answer, 0 where none came. code: the server's. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** The answer to a GET, or to a POST of `body`; throws ApiError unless it is a good one. */
export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (key.get()) headers.authorization = `Bearer ${asHeader(key.get())}`;
  let answer;
  try {
    answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (!answer.ok) throw await failure(answer);
  return answer;
}

/** An error object of the server in words. */
export function told(error, status) {
  return new ApiError(sentence(error?.message ?? "The server failed without saying why."), {
    status,
    code: error?.code ?? null,
  });
}

async function failure(answer) {
  let error;
  try {
    error = (await answer.json()).error;
  } catch {
    error = { message: `The server answered ${answer.status} ${answer.statusText}`.trim() };
  }
  const found = told(error, answer.status);
  const wait = Number(answer.headers.get("retry-after"));
  if (wait > 0) found.message += ` Try again in ${wait} s.`;
  return found;
}

/** A header holds bytes, one a character; the server reads them as UTF-8. */
function asHeader(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}
