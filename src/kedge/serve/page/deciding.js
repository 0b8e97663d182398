/** Taking a version into use, or throwing it away. */

import { act, toast } from "./announce.js";
import { call } from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { refresh } from "./store.js";
import { some } from "./words.js";

/** A listener for a button that takes a version into use, a new one or one of before. */
export function use(version) {
  return (event) =>
    act(event.currentTarget, async () => {
      const { lost_classes: lost = [] } = await call("POST", `api/versions/${version.id}/activate`, {});
      await refresh();
      toast(`Version ${version.number} is in use now. You can change that at any time.`);
      if (lost.length) explain(version, lost);
    });
}

/** A listener for a button that throws a new version away. */
export function discard(version) {
  return (event) =>
    act(event.currentTarget, async () => {
      await call("POST", `api/versions/${version.id}/discard`, {});
      toast("The new version was thrown away. Nothing has changed.");
      await refresh();
    });
}

/** A listener for a button that adds the classes of a new version without its training. */
export function onlyAdd(version) {
  return (event) =>
    act(event.currentTarget, async () => {
      await call("POST", `api/versions/${version.id}/discard`, {});
      await call("POST", "api/rounds", { settings: { train: "none" } });
      await refresh();
    });
}

function explain(version, lost) {
  const text =
    `It does not know ${some(lost, 12)}: other versions have learned this, and the pictures were ` +
    "deleted. Go to such a version, and it is known again.";
  return openDialog(`Version ${version.number} knows less`, () => h("p", {}, text));
}
