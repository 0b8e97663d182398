/**
 * What an improvement did, in plain words. The server measures (see docs/outcome.md); differences
 * within the noise of such a measurement are at most "perhaps" some.
 */

import { count } from "./words.js";

const WORTH_TELLING = 3; // points
const ESTIMATE_NOISE = 5; // points: estimates for classes whose pictures are gone were that near

/**
 * Rows {label, before, after, note, change} of a version, `change` being "better", "worse",
 * "perhaps-better", "perhaps-worse" or "same"; none if nothing was measured. `before` is the version before with the new classes taught
 * to it, which is what people had while they decided: so a difference is what improving did.
 */
export function outcomeRows(version) {
  const { naming = [], few_shot: few = null } = version.outcome ?? {};
  const old = naming.filter((one) => one.before != null);
  const fresh = naming.filter((one) => one.before == null);
  const rows = [];
  if (old.length) rows.push(namingRow("it knew before", old));
  if (fresh.length) rows.push(namingRow(old.length ? "that are new" : "it has learned", fresh));
  if (few) {
    const change = few.after - few.before;
    rows.push({
      label: "Classes it has never seen",
      before: few.before,
      after: few.after,
      change: verdict(change, few.interval),
      note: "How well it would tell new classes apart, from a few pictures of each.",
    });
  }
  return rows;
}

function namingRow(which, changes) {
  const n = changes.reduce((sum, one) => sum + one.classes, 0);
  const before = mean(changes, "untrained");
  const after = mean(changes, "after");
  const estimated = changes.some((one) => one.estimated);
  const images = changes.reduce((sum, one) => sum + one.images, 0);
  return {
    label: `${n === 1 ? "The class" : `The ${n} classes`} ${which}`,
    before,
    after,
    change: verdict(after - before, noise(changes, before, after)),
    note: estimated
      ? "Estimated, since their pictures are not used any more."
      : `Tried on ${count(images, "picture")} that it did not study.`,
  };
}

/** Weighted by pictures, or by classes where the pictures are gone. */
function mean(changes, key) {
  const estimated = changes.some((one) => one.estimated);
  const weight = (one) => (estimated ? one.classes : one.images);
  const total = changes.reduce((sum, one) => sum + weight(one), 0);
  return changes.reduce((sum, one) => sum + weight(one) * one[key], 0) / total;
}

/** Half-width of the 95% interval of the difference of two shares (Agresti and Caffo, 2000). */
function noise(changes, ...percents) {
  if (changes.some((one) => one.estimated)) return ESTIMATE_NOISE;
  const n = changes.reduce((sum, one) => sum + one.images, 0) + 2;
  const variance = (percent) => {
    const share = ((percent / 100) * (n - 2) + 1) / n;
    return (share * (1 - share)) / n;
  };
  return 196 * Math.sqrt(percents.reduce((sum, percent) => sum + variance(percent), 0));
}

function verdict(change, margin) {
  const direction = change > 0 ? "better" : "worse";
  if (Math.abs(change) > margin) return direction;
  return Math.abs(change) >= WORTH_TELLING ? `perhaps-${direction}` : "same";
}

export const ADVICE = {
  unknown:
    "It could not be measured: there were too few pictures to set some aside. Try it, and go back if " +
    "you do not like it.",
  mixed: "Some things got better and some got worse. Look at both before you decide.",
  worse: "It got worse at some of it. It is better to keep the version that you have.",
  better: "It got better, and nothing got clearly worse.",
  same:
    "It is not clearly better or worse: with so few pictures, such differences may be chance. If you " +
    "use it, the new classes become part of what it has learned, and their pictures may be deleted.",
};

/** All rows together, as a key of ADVICE. */
export function summary(rows) {
  const has = (change) => rows.some((row) => row.change === change);
  if (!rows.length) return "unknown";
  if (has("worse")) return has("better") ? "mixed" : "worse";
  return has("better") ? "better" : "same";
}

/**
 * The share of pictures named correctly over all its classes, in %; with "untrained", as it was
 * before it improved. Null if it was not measured.
 */
export function overall(version, key = "after") {
  const naming = version.outcome?.naming ?? [];
  const n = naming.reduce((sum, one) => sum + one.classes, 0);
  return n ? naming.reduce((sum, one) => sum + one.classes * one[key], 0) / n : null;
}
