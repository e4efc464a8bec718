// Elements from data. Text is only ever set as text: nothing that comes from the network is parsed as HTML.

export const byId = (id) => document.getElementById(id);

/** An element; `attributes` with null or false are left out, functions are listeners. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets the text of an element if it differs, so that what is unchanged is not announced or painted again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Makes the children of `parent` those of `items`, in order, keeping the elements of keys that stay.
 * Elements are kept as they are while they stay in place, so that focus survives.
 */
export function reconcile(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = known.get(key);
    if (element) known.delete(key);
    else {
      element = create(item);
      element.dataset.key = key;
    }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const leftover of known.values()) leftover.remove();
}

/** The value of a custom property as a colour that a canvas takes. */
export function colour(name) {
  const probe = byId("probe");
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** A canvas scaled for the screen, cleared; sizes are in CSS pixels. */
export function surface(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = devicePixelRatio || 1;
  const [pixelsWide, pixelsHigh] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== pixelsWide || canvas.height !== pixelsHigh) {
    canvas.width = pixelsWide;
    canvas.height = pixelsHigh;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
