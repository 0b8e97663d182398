/**
 * What the server last said. It is polled: every tab, and every program that changes something,
 * is seen here within seconds. Nothing that matters is kept in the page alone.
 */

import { get, getIfChanged, NotConnected, Refused } from "./api.js";

const POLL = 1500; // ms
const POLL_HIDDEN = 15000; // while nobody looks

export const store = {
  state: null, // of api/state
  classes: [],
  versions: [],
  connected: true,
  signedOut: false,
};

const listeners = new Set();
let etag = null;
let revision = null; // of the classes and versions that are shown
let timer = 0;
let polling = null;

/** Call `listener(store)` now and after each change. */
export function watch(listener) {
  listeners.add(listener);
  if (store.state || store.signedOut) listener(store);
}

function tell() {
  for (const listener of listeners) {
    try {
      listener(store);
    } catch (error) {
      console.error(error); // one part that fails does not stop the others
    }
  }
}

/** Ask the server now; resolves when the page shows what it said. */
export async function refresh() {
  if (polling) await polling; // what runs may have begun before the change
  polling = poll();
  await polling;
  polling = null;
}

async function poll() {
  clearTimeout(timer);
  try {
    const answer = await getIfChanged("api/state", etag);
    const returned = !store.connected || store.signedOut;
    store.connected = true;
    store.signedOut = false;
    if (answer) {
      if (answer.value.revision !== revision) await load();
      store.state = answer.value;
      revision = answer.value.revision;
      etag = answer.etag; // last: if something fails, all is asked for again
    }
    if (answer || returned) tell();
  } catch (error) {
    failed(error);
  }
  clearTimeout(timer);
  timer = setTimeout(refresh, document.hidden ? POLL_HIDDEN : POLL);
}

async function load() {
  const [classes, versions] = await Promise.all([get("api/classes"), get("api/versions")]);
  store.classes = classes.classes;
  store.versions = versions.versions;
}

function failed(error) {
  const before = `${store.connected} ${store.signedOut}`;
  if (error instanceof Refused && error.status === 401) store.signedOut = true;
  else store.connected = false;
  if (!(error instanceof NotConnected || error instanceof Refused)) console.error(error);
  etag = null;
  revision = null;
  if (before !== `${store.connected} ${store.signedOut}`) tell();
}

/** Resolves as soon as the server answers again. */
export async function connected() {
  while (!store.connected) await new Promise((done) => setTimeout(done, 300));
}

document.addEventListener("visibilitychange", () => document.hidden || refresh());

/** The version in use and those that it came from, the latest first. */
export function lineOfVersions() {
  const byId = new Map(store.versions.map((version) => [version.id, version]));
  const line = [];
  let version = store.versions.find(({ active }) => active);
  for (; version; version = byId.get(version.parent)) line.push(version);
  return line;
}

const RANK = { ask: 0, teach: 1, improve: 2 };

/** Whether the person who is signed in may do what needs this role. */
export const may = (role) => RANK[store.state?.role ?? "ask"] >= RANK[role];
