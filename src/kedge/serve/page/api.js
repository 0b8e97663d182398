/** The HTTP interface of the server (see api/openapi.json). */

/** An answer that says what was wrong, in one sentence. */
export class Refused extends Error {
  constructor(sentence, status, retryAfter = 0) {
    super(sentence);
    this.status = status;
    this.retryAfter = retryAfter; // seconds
  }
}

/** No answer at all. */
export class NotConnected extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

// Other sites cannot make a browser send this header, so that only this page can change anything.
const HEADERS = { "X-Kedge": "1" };

/** Send JSON (or nothing) and return the JSON of the answer; throws Refused or NotConnected. */
export async function call(method, path, body) {
  const response = await attempt(path, {
    method,
    headers: body === undefined ? HEADERS : { ...HEADERS, "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return read(response.status, await response.text(), response.headers.get("Retry-After"));
}

export const get = (path) => call("GET", path);

/** The JSON at `path` and its ETag, or null if the ETag is still that one. */
export async function getIfChanged(path, etag) {
  const headers = etag ? { ...HEADERS, "If-None-Match": etag } : HEADERS;
  const response = await attempt(path, { headers, cache: "no-store" });
  if (response.status === 304) return null;
  return { value: read(response.status, await response.text()), etag: response.headers.get("ETag") };
}

async function attempt(path, options) {
  try {
    return await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new NotConnected();
  }
}

/**
 * Upload files; `onProgress(bytes)` counts what has been sent, which fetch() cannot tell. With
 * `numbered`, the server gets numbers for names: they say which answer belongs to which file.
 */
export function upload(path, files, { onProgress, signal, numbered = false } = {}) {
  return new Promise((resolve, reject) => {
    const form = new FormData();
    files.forEach((file, i) => form.append("files", file, numbered ? String(i) : file.name));
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(HEADERS)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onProgress?.(event.loaded);
    request.onerror = () => reject(new NotConnected());
    request.onabort = () => reject(new DOMException("Stopped.", "AbortError"));
    request.onload = () => {
      try {
        resolve(read(request.status, request.responseText, request.getResponseHeader("Retry-After")));
      } catch (error) {
        reject(error);
      }
    };
    signal?.addEventListener("abort", () => request.abort());
    if (signal?.aborted) reject(new DOMException("Stopped.", "AbortError"));
    else request.send(form);
  });
}

function read(status, text, retryAfter) {
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    // Not ours, perhaps of a proxy in between.
  }
  if (status >= 200 && status < 300) return body;
  const sentence = body?.error ?? `The server answered with the error ${status}.`;
  throw new Refused(sentence, status, Number(retryAfter) || 0);
}
