/**
 * Which part of the page is shown: named by the end of the address, so that the browser's "back"
 * works. Wide screens show Teach, Ask and Improve side by side, as the style sheets say.
 */

const VIEWS = ["teach", "ask", "improve", "versions", "map"];
const listeners = new Set();

export const view = () => document.body.dataset.view;

export function onView(listener) {
  listeners.add(listener);
}

function show(name) {
  document.body.dataset.view = name;
  for (const link of document.querySelectorAll("#navigation a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const listener of listeners) listener(name);
}

export function goTo(name) {
  if (view() === name) return;
  history.pushState(null, "", `#${name}`);
  show(name);
  window.scrollTo(0, 0);
}

export function startViews() {
  const read = () => {
    const name = location.hash.slice(1);
    show(VIEWS.includes(name) ? name : "teach");
  };
  document.getElementById("navigation").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    goTo(link.dataset.view);
  });
  window.addEventListener("popstate", read);
  read();
}
