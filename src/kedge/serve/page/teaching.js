/** Pictures on their way to a class: several classes at once, each with progress and refusals. */

import { announce, toast } from "./announce.js";
import { call } from "./api.js";
import { refresh, store } from "./store.js";
import { uploadAll } from "./uploads.js";
import { count } from "./words.js";

const running = new Map(); // id of the class → {share, n, refused, known, stop}
const listeners = new Set();
let line = Promise.resolve(); // one upload at a time is as fast, and easier on the server

export const teachingOf = (id) => running.get(String(id)) ?? null;

export function onTeaching(listener) {
  listeners.add(listener);
}

function update(id, change) {
  running.set(String(id), { ...running.get(String(id)), ...change });
  for (const listener of listeners) listener();
}

/** Forget what is shown about the last upload to a class. */
export function dismiss(id) {
  running.delete(String(id));
  for (const listener of listeners) listener();
}

/** Upload pictures to a class, after the uploads that are under way. */
export function teach(id, files) {
  const before = running.get(String(id));
  const queued = before?.share != null ? before.n : 0;
  const stop = before?.share != null ? before.stop : new AbortController();
  update(id, { share: 0, n: queued + files.length, refused: [], known: 0, problem: "", stop });
  line = line.then(() => send(id, files, stop));
  return line;
}

async function send(id, files, stop) {
  if (stop.signal.aborted) return;
  let [added, known] = [0, 0];
  const result = { share: null };
  try {
    result.refused = await uploadAll(`api/classes/${encodeURIComponent(id)}/pictures`, files, {
      signal: stop.signal,
      onProgress: (share) => update(id, { share }),
      onBatch: (answer) => {
        added += answer.added.length;
        known += answer.known.length;
        refresh(); // thumbnails appear while the rest is sent
      },
    });
  } catch (error) {
    result.problem = stop.signal.aborted ? "" : error.message;
  }
  const name = store.classes.find((item) => String(item.id) === String(id))?.name ?? "the class";
  if (added) announce(`${count(added, "picture")} added to ${name}.`);
  update(id, { ...result, known });
  if (!known && !result.problem && !result.refused?.length) dismiss(id);
  await refresh();
}

/** The class of this name, made if there is none. */
export async function classNamed(name) {
  const wanted = name.trim();
  const found = store.classes.find((item) => item.name === wanted);
  return found ?? call("POST", "api/classes", { name: wanted });
}

/** Teach classes by the names of folders: `groups` maps a name to its files. */
export async function teachFolders(groups) {
  for (const [name, files] of groups) {
    try {
      teach((await classNamed(name)).id, files);
    } catch (error) {
      toast(`${name}: ${error.message}`, "failed");
    }
    await refresh();
  }
}
