/** Icons: strokes on a grid of 24. They are decoration; the control that has one has a label. */

import { svg } from "./dom.js";

const PATHS = {
  add: "M12 5v14M5 12h14",
  anchor: "M12 7v14M8 10.5h8M3.5 13c.5 5 4 8 8.5 8s8-3 8.5-8M12 7a2.3 2.3 0 1 0 0-4.6a2.3 2.3 0 0 0 0 4.6",
  auto: "M12 3a9 9 0 1 0 0 18a9 9 0 0 0 0-18M12 3v18M12 8h7M12 12h9M12 16h7",
  camera: "M4 8h3l2-3h6l2 3h3v11H4zM12 10a3.500 3.500 0 1 0 0 7a3.500 3.500 0 0 0 0-7",
  check: "M5 12.500l4.500 4.500L19 7.500",
  close: "M6 6l12 12M18 6L6 18",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  moon: "M20 14.500A8.500 8.500 0 1 1 9.500 4a7 7 0 0 0 10.500 10.500",
  out: "M14 4h5v16h-5M3 12h11M10 8l4 4-4 4",
  pictures: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.500 9.500h.01",
  sparkle: "M12 3l2 6.500L20.500 12L14 14.500L12 21l-2-6.500L3.500 12L10 9.500z",
  sun: "M12 8a4 4 0 1 0 0 8a4 4 0 0 0 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1 1M18 18l1 1M5 19l1-1M18 6l1-1",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.500 11v5M13.500 11v5",
  undo: "M9 7L4 12l5 5M4 12h10a6 6 0 0 1 6 6",
  upload: "M12 20V8M7 12l5-5 5 5M5 4h14",
};

export function icon(name) {
  const attributes = { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" };
  return svg("svg", attributes, svg("path", { d: PATHS[name] }));
}
