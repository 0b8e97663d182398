/** Improve: what waits to be learned, the progress of learning, and the decision about its result. */

import { act, announce, toast } from "./announce.js";
import { call } from "./api.js";
import { comparison } from "./comparison.js";
import { button, link, quiet } from "./controls.js";
import { forget } from "./forget.js";
import { h, renderOnce, replace } from "./dom.js";
import { icon } from "./icons.js";
import { lineOfVersions, may, refresh, store, watch } from "./store.js";
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
  const title = h("h2", { id: "improve-title" }, "Improve");
  const entry = document.querySelector('#navigation a[data-view="improve"]');
  replace(section, h("div", { class: "improve-box" }, title, body));
  watch(() => {
    section.hidden = !store.state || store.signedOut;
    if (section.hidden) return;
    const stage = currentStage();
    section.dataset.stage = stage;
    entry.classList.toggle("calls", ["running", "candidate"].includes(stage));
    const { job, candidate, improve, role, active_version: active } = store.state;
    if (before === "running" && stage === "candidate") {
      toast(`Version ${candidate.number} is ready: see what has changed.`);
    }
    before = stage;
    if (stage === "running") return showProgress();
    spoken = null;
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
  const done = lineOfVersions().find(({ pictures_left: left }) => left > 0);
  return [h("p", { class: "improve-line" }, reason), done && may("improve") && promise(done)];
}

/** That pictures may be deleted now. */
function promise(version) {
  const pictures = count(version.pictures_left, "picture");
  const start = link("Delete them …", () => forget(version), { "data-focus": "forget" });
  const text = `It no longer needs the ${pictures} that version ${version.number} learned from. `;
  return h("p", { class: "promise" }, icon("anchor"), h("span", {}, text, start));
}

function ready() {
  const { n_pictures: n, n_new_classes: fresh, estimated_seconds: seconds } = store.state.improve;
  const ofClasses = fresh ? ` of ${count(fresh, "new class", "new classes")}` : "";
  const time = seconds == null ? "some minutes" : duration(seconds);
  const text = h(
    "p",
    { class: "improve-line" },
    h("b", {}, `It can study ${count(n, "new picture")}${ofClasses}. `),
    `That takes ${time}. You can go on asking and teaching meanwhile, and nothing changes until you agree.`,
  );
  return [text, may("improve") ? startButton("Improve") : quiet("Someone who may improve has to start it.")];
}

function startButton(text) {
  const start = (event) =>
    act(event.currentTarget, async () => {
      await call("POST", "api/rounds", {});
      announce("It is improving now.");
      await refresh();
    });
  return button([icon("sparkle"), text], start, { kind: "primary large", "data-focus": "start" });
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
  const step = job.state === "queued" ? "starting" : phase;
  const timeLeft = left == null ? "" : `${duration(left)} left`;
  body.querySelector(".step").textContent = PHASES[step] ?? PHASES.training;
  body.querySelector(".left").textContent = timeLeft;
  const quarter = Math.floor((share ?? 0) / SPOKEN);
  if (spoken != null && spoken !== quarter) announce(`${Math.round(share * 100)}% done. ${timeLeft}`);
  spoken = quarter;
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
    may("improve") && button("Stop improving", cancel),
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
  const what = failed
    ? "Improving did not succeed."
    : "Improving was interrupted; it can go on from where it was.";
  const choice = failed
    ? startButton("Try again")
    : [
        button("Continue", go, { kind: "primary large" }),
        button("Give it up", cancel, { kind: "large" }),
      ];
  return [
    h("p", { class: "improve-line problem" }, `${what} ${job.message}`),
    may("improve") && h("div", { class: "buttons" }, choice),
  ];
}
