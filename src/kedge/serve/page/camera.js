/** Pictures from the camera: one with a click, several while the button is held. */

import { button } from "./controls.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { announce } from "./announce.js";
import { count } from "./words.js";

const INTERVAL = 300; // ms between pictures while the button is held
const MOST = 200;

/** A button for the camera, or nothing where the browser has none or does not allow it. */
export function cameraButton(label, take, attributes = {}) {
  if (!navigator.mediaDevices?.getUserMedia) return null; // also on pages without encryption
  return button(icon("camera"), take, { "aria-label": label, title: label, ...attributes });
}

/** Open the camera; resolves with the files of the pictures that were taken. */
export async function takePictures(title, { several = true } = {}) {
  const files = [];
  let stream = null;
  const kept = await openDialog(title, (close) => {
    const video = h("video", { autoplay: true, playsinline: true, "aria-label": "What the camera sees" });
    video.muted = true;
    const message = h("p", { role: "status" }, "Asking for the camera …");
    const label = several ? "Take a picture (hold for several)" : "Take a picture";
    const shot = button([icon("camera"), label], null, { kind: "primary", disabled: true });
    const done = button("Use them", () => close(true), { hidden: true });
    const snap = async () => {
      files.push(await photograph(video, files.length + 1));
      if (!several) return close(true);
      message.textContent = `${count(files.length, "picture")} taken.`;
      done.hidden = false;
    };
    whileHeld(shot, snap, several);
    video.addEventListener("loadeddata", () => {
      shot.disabled = false;
      message.textContent = "";
      shot.focus();
    });
    open().then(
      (opened) => {
        if (!video.isConnected) return stop(opened); // the dialog was closed meanwhile
        stream = opened;
        video.srcObject = opened;
      },
      (error) => {
        message.textContent = why(error);
        announce(message.textContent);
      },
    );
    return [h("div", { class: "camera" }, video), message, h("div", { class: "buttons end" }, done, shot)];
  });
  stop(stream);
  return kept ? files : [];
}

const stop = (stream) => stream?.getTracks().forEach((track) => track.stop());

function open() {
  const video = { facingMode: "environment", width: { ideal: 1280 } };
  return navigator.mediaDevices.getUserMedia({ video, audio: false });
}

function why(error) {
  if (error.name === "NotAllowedError") {
    return "The browser does not let this page use the camera. You can allow it beside the address.";
  }
  if (error.name === "NotFoundError") return "No camera was found.";
  return `The camera did not start: ${error.message}`;
}

/** Run `action` once for a click or a key, and again and again while the pointer is down. */
function whileHeld(shot, action, several) {
  let timer = 0;
  let taken = 0;
  const run = () => {
    if ((taken += 1) > MOST) clearInterval(timer);
    else action();
  };
  const end = () => clearInterval(timer);
  shot.addEventListener("click", (event) => event.detail === 0 && action()); // by the keyboard
  shot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    taken = 0;
    run();
    if (several) timer = setInterval(run, INTERVAL);
  });
  for (const name of ["pointerup", "pointercancel", "pointerleave"]) shot.addEventListener(name, end);
}

async function photograph(video, n) {
  const canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  const time = new Date().toISOString().slice(0, 19).replaceAll(":", "-");
  return new File([blob], `camera ${time} ${n}.jpg`, { type: "image/jpeg" });
}
