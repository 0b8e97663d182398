/**
 * Uploads of any number of pictures: in batches, so that a hundred photographs neither hit the
 * server's limits nor have to start again when the connection breaks. What was sent twice does not
 * count twice: the server knows a picture by its content.
 */

import { NotConnected, Refused, upload } from "./api.js";
import { connected, refresh, store } from "./store.js";
import { size } from "./words.js";

const MOST_FILES = 16;
const MOST_BYTES = 24e6;
const MOST_CUTS = 3; // of one batch, by a server that is there
const BUSY = new Set([429, 503]); // "later", not "no"

/**
 * Send `files` to `path`. `onBatch(answer, files)` is called for each batch, `onProgress(share)`
 * while sending. Returns [{name, reason}] of the files that were not taken. With `numbered`, names
 * in the answers are indices of the batch.
 */
export async function uploadAll(path, files, { onBatch, onProgress, signal, numbered } = {}) {
  const most = store.state.limits.picture_bytes;
  const small = files.filter((file) => file.size <= most);
  const large = files.filter((file) => file.size > most);
  const refused = large.map(({ name }) => ({ name, reason: `larger than ${size(most)}` }));
  const total = small.reduce((sum, file) => sum + file.size, 0) || 1;
  let sent = 0;
  for (const batch of batches(small)) {
    const bytes = batch.reduce((sum, file) => sum + file.size, 0);
    const progress = (loaded) => onProgress?.(Math.min(1, (sent + Math.min(loaded, bytes)) / total));
    for (const [part, answer] of await sendBatch(path, batch, { onProgress: progress, signal, numbered })) {
      const named = ({ name, reason }) => ({ name: numbered ? part[name].name : name, reason });
      refused.push(...answer.refused.map(named));
      if (!answer.failed) onBatch?.(answer, part);
    }
    sent += bytes;
    onProgress?.(sent / total);
  }
  return refused;
}

function batches(files) {
  const made = [];
  let bytes = Infinity;
  for (const file of files) {
    if (bytes + file.size > MOST_BYTES || made.at(-1).length >= MOST_FILES) {
      made.push([]);
      bytes = 0;
    }
    made.at(-1).push(file);
    bytes += file.size;
  }
  return made;
}

/** [[files, answer]]: more than one if the server refused the batch as a whole. */
async function sendBatch(path, batch, options) {
  try {
    return [[batch, await persist(path, batch, options)]];
  } catch (error) {
    if (!(error instanceof Refused) || [401, 403, 404, 507].includes(error.status)) throw error;
    if (batch.length === 1) {
      const refused = [{ name: options.numbered ? 0 : batch[0].name, reason: error.message }];
      return [[batch, { failed: true, refused }]];
    }
    const parts = []; // one of them may be to blame
    for (const file of batch) parts.push(...(await sendBatch(path, [file], options)));
    return parts;
  }
}

async function persist(path, batch, options) {
  for (let cuts = 0; ; ) {
    try {
      return await upload(path, batch, options);
    } catch (error) {
      if (options.signal?.aborted) throw error;
      if (error instanceof NotConnected) {
        // A file that was changed or deleted since it was chosen looks like a broken connection.
        await Promise.all(batch.map(readable));
        await pause(500);
        await refresh();
        if (store.connected && (cuts += 1) >= MOST_CUTS) throw error;
        await connected();
      } else if (BUSY.has(error.status)) {
        await pause(1000 * Math.min(30, error.retryAfter || 2));
      } else {
        throw error;
      }
    }
  }
}

async function readable(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    throw new Refused(`${file.name} cannot be read any more: it was changed or moved.`, 400);
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
