/** Building and updating elements. Text becomes a text node, so a name is never read as HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** An element. Attributes that are functions are listeners; false, null and undefined are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(9).filter((child) => child != null && child !== false));
  return element;
}

/**
 * Make the children of `parent` those of `items`, in their order: one element for each key, made
 * by `create(item)` and kept, with its focus and scroll position, for as long as its key is there.
 * `update(element, item)` runs when the item differs from the one before.
 */
export function keyed(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = old.get(key);
    old.delete(key);
    const text = JSON.stringify(item);
    if (!element) {
      element = create(item);
      element.dataset.key = key;
    }
    if (element.shown !== text) {
      element.shown = text;
      update?.(element, item);
    }
    const next = at ? at.nextElementSibling : parent.firstElementChild;
    if (next !== element) parent.insertBefore(element, next);
    at = element;
  }
  for (const element of old.values()) element.remove();
}

/**
 * Replace what is in `parent`. A control that has the focus hands it to the one with the same
 * `data-focus` in the new content, or else to `parent`, so that the keyboard stays in this place.
 */
export function replace(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  parent.replaceChildren(...children.flat(9).filter((child) => child != null && child !== false));
  if (!focused) return;
  const name = CSS.escape(focused.dataset.focus ?? "");
  const next = name && parent.querySelector(`[data-focus="${name}"]`);
  if (!next) parent.tabIndex = -1;
  (next || parent).focus({ preventScroll: true });
}

/** Let `draw(width)` fill `parent`, now and whenever its width has changed; returns a redraw. */
export function drawnToFit(parent, draw) {
  let width = 0;
  const redraw = () => width && replace(parent, draw(width));
  new ResizeObserver(() => {
    if (parent.clientWidth === width) return;
    width = parent.clientWidth;
    redraw();
  }).observe(parent);
  return redraw;
}

/** Replace the content of `parent` only when `value` has changed since the last call for it. */
export function renderOnce(parent, value, build) {
  const text = JSON.stringify(value);
  if (parent.rendered === text) return;
  parent.rendered = text;
  replace(parent, build());
}
