/** Improve: what waits to be learned, the progress of learning, and the decision about its result. */

import { act, announce, toast } from "./announce.js";
import { call } from "./api.js";
import { comparison } from "./comparison.js";
import { forget } from "./forget.js";
import { h, renderOnce, replace } from "./dom.js";
import { icon } from "./icons.js";
import { may, refresh, store, watch } from "./store.js";
import { count, duration } from "./words.js";

const PHASES = {
  starting: "It starts in a moment …",
  reading: "Looking at the pictures …",
  preparing: "Getting ready to study …",
  training: "Studying the pictures …",
  finishing: "Trying out what it has learned …",
};
const SPOKEN = 0.25; // of the progress, between two announcements

let body;
let spoken = null;
let before = null; // the stage

export function startImprove(section) {
  body = h("div", { class: "improve-body" });
  replace(section, h("div", { class: "improve-box" }, h("h2", { id: "improve-title" }, "Improve"), body));
  watch(() => {
    section.hidden = !store.state || store.signedOut;
    if (section.hidden) return;
    const stage = currentStage();
    section.dataset.stage = stage;
    document.querySelector('#navigation a[data-view="improve"]').classList.toggle("calls", ["running", "candidate"].includes(stage));
    if (before === "running" && stage === "candidate") toast(`Version ${store.state.candidate.number} is ready: see what has changed.`);
    before = stage;
    if (stage === "running") return showProgress();
    spoken = null;
    const { job, candidate, improve, role, active_version: active } = store.state;
    const left = store.versions.map(({ pictures_left: n }) => n);
    renderOnce(body, [stage, job, candidate, improve, role, active?.id, left], STAGES[stage]);
  });
}

function currentStage() {
  const { job, candidate, improve } = store.state;
  if (["queued", "running"].includes(job?.state)) return "running";
  if (candidate) return "candidate";
  if (["failed", "interrupted"].includes(job?.state)) return "stopped";
  if (improve.possible) return "ready";
  return store.classes.length ? "idle" : "empty";
}

const STAGES = { candidate: () => comparison(candidateVersion()), stopped, ready, idle, empty: idle };

function candidateVersion() {
  const { candidate } = store.state;
  return store.versions.find((version) => version.id === candidate.id) ?? candidate;
}

function idle() {
  const { improve, active_version: active } = store.state;
  const version = store.versions.find(({ id }) => id === active.id);
  const reason = improve.n_pictures
    ? improve.reason
    : version?.n_classes
      ? "It has studied all its pictures. Add more of them, or new classes, and it can improve again."
      : "There is nothing to study yet. Give each class some pictures first.";
  const left = version?.pictures_left;
  return [
    h("p", { class: "improve-line" }, reason),
    left > 0 && may("improve") &&
      h(
        "p",
        { class: "promise" },
        icon("anchor"),
        h("span", {}, `It no longer needs the ${count(left, "picture")} that it learned from. `, h("button", { type: "button", class: "link", "data-focus": "forget", onclick: () => forget(version) }, "Delete them …")),
      ),
  ];
}

function ready() {
  const { n_pictures: n, n_new_classes: fresh, estimated_seconds: seconds } = store.state.improve;
  const what = fresh ? `${count(n, "new picture")} of ${count(fresh, "new class", "new classes")}` : count(n, "new picture");
  const time = seconds == null ? "some minutes" : duration(seconds);
  const text = h(
    "p",
    { class: "improve-line" },
    h("b", {}, `It can study ${what}. `),
    `That takes ${time}. You can go on asking and teaching meanwhile, and nothing changes until you agree.`,
  );
  return [text, may("improve") ? startButton("Improve") : h("p", { class: "quiet" }, "Someone who may improve has to start it.")];
}

function startButton(text) {
  const start = (event) =>
    act(event.currentTarget, async () => {
      await call("POST", "api/rounds", {});
      announce("It is improving now.");
      await refresh();
    });
  return h("button", { type: "button", class: "button primary large", "data-focus": "start", onclick: start }, icon("sparkle"), text);
}

function showProgress() {
  const { job } = store.state;
  const { fraction: share, phase } = job.progress ?? {};
  // The other phases are short, and their seconds are not those of the whole.
  const left = phase === "training" ? job.progress.seconds_left : null;
  if (body.rendered !== `running ${job.id}`) {
    body.rendered = `running ${job.id}`;
    replace(body, progressBox());
  }
  const bar = body.querySelector("progress");
  // A bar without a value moves by itself.
  if (share == null) bar.removeAttribute("value");
  else bar.value = share;
  body.querySelector(".step").textContent = PHASES[job.state === "queued" ? "starting" : phase] ?? PHASES.training;
  body.querySelector(".left").textContent = left == null ? "" : `${duration(left)} left`;
  const quarter = Math.floor((share ?? 0) / SPOKEN);
  if (spoken !== quarter && share != null) {
    if (spoken != null) announce(`${Math.round(share * 100)}% done${left == null ? "" : `, ${duration(left)} left`}.`);
    spoken = quarter;
  }
}

function cancel(event) {
  return act(event.currentTarget, async () => {
    await call("POST", `api/jobs/${store.state.job.id}/cancel`, {});
    toast("Improving was stopped. Nothing has changed.");
    await refresh();
  });
}

function progressBox() {
  return h(
    "div",
    { class: "progress-box" },
    h("p", { class: "step" }),
    h("progress", { max: 1, "aria-label": "Improving" }),
    h("p", { class: "quiet left" }),
    may("improve") && h("button", { type: "button", class: "button", onclick: cancel }, "Stop improving"),
  );
}

function stopped() {
  const { job } = store.state;
  const failed = job.state === "failed";
  const go = (event) =>
    act(event.currentTarget, async () => {
      await call("POST", `api/jobs/${job.id}/continue`, {});
      await refresh();
    });
  const text = failed ? `Improving did not succeed. ${job.message ?? ""}` : `Improving was interrupted; it can go on from where it was. ${job.message ?? ""}`;
  return [
    h("p", { class: "improve-line problem" }, text),
    may("improve") &&
      h(
        "div",
        { class: "buttons" },
        failed ? startButton("Try again") : h("button", { type: "button", class: "button primary large", onclick: go }, "Continue"),
        !failed && h("button", { type: "button", class: "button large", onclick: cancel }, "Give it up"),
      ),
  ];
}
